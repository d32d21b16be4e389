"""SeedsReport: the evaluation of each seed of a run, with the mean and deviation of every score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message, printable, shell_word, shown
from regard.runs.run_commands import ChosenRun, Report
from regard.runs.run_folder import is_run
from regard.runs.run_task import RunTask
from regard.runs.seed_folders import seed_folder
from regard.runs.seed_scores import scores_table, summarised, written_summary

__all__ = ["SeedsReport", "evaluate_seeds"]

FILES = ("output", "page")
"""Options of `regard evaluate` for files to write. For a run of several seeds, these options are an error,
because each seed would overwrite the file."""


@dataclass(frozen=True, eq=False)
class SeedsReport:
    """The evaluation of a run of several seeds, with the mean and deviation of each score over the seeds.

    folder: the run folder.
    reports: the result of RunTask.evaluate_run() for each seed.
    """

    folder: Path
    reports: Mapping[int, Report]

    @property
    def scores(self) -> dict[int, dict[str, float]]:
        """The scores of each seed, such as {0: {"BLEU": 12.5}}.

        The scores are the floats in Report.to_dict(), and those in its list "scores", by their names. The
        integers are left out, because they are counts.
        """
        return {seed: _scores(report.to_dict()) for seed, report in self.reports.items()}

    @property
    def parts(self) -> dict[str, dict[int, dict[str, float]]]:
        """The scores of each part of the reports, by the name of the part and the seed.

        Parts are the sizes of algorithmic sequences, such as "length 20", and "faithfulness". For example,
        {"length 20": {0: {"bits": 1.5}}}.
        """
        parts: dict[str, dict[int, dict[str, float]]] = {}
        for seed, report in self.reports.items():
            for name, scores in _parts(report.to_dict()).items():
                parts.setdefault(name, {})[seed] = scores
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON.

        "mean", "deviation" and "interval" have the mean of each score over the seeds, its sample standard
        deviation, and its 95 % confidence interval.
        "parts" has the same for each part of the reports, if there are parts. "seeds" has the report of each
        seed.
        """
        parts = {name: written_summary(summarised(scores.values())) for name, scores in self.parts.items()}
        return {
            "folder": str(self.folder),
            **written_summary(summarised(self.scores.values())),
            **({"parts": parts} if parts else {}),
            "seeds": {str(seed): report.to_dict() for seed, report in self.reports.items()},
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(f"{shown(self.folder)}: {len(self.reports)} seeds, mean ± sample standard deviation")
        if not any(_sizes(report.to_dict()) for report in self.reports.values()):
            yield scores_table(self.scores)
        for name, scores in self.parts.items():
            yield Text(f"\n{printable(name)}", "cyan")
            yield scores_table(scores)
        notes = [report.to_dict().get("notes") for report in self.reports.values()]
        for note in dict.fromkeys(each for some in notes if isinstance(some, list) for each in some):
            yield Text(printable(str(note)), "dim")


def _scores(report: Mapping[str, Any]) -> dict[str, float]:
    listed = report.get("scores")
    named = {str(each["name"]): each["value"] for each in listed} if isinstance(listed, list) else {}
    return _floats(named | dict(report))


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _sizes(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of each size of an algorithms report, or [] for other reports."""
    sizes = report.get("sizes")
    named = isinstance(sizes, list) and all(isinstance(each, dict) and "sizes" in each for each in sizes)
    return sizes if isinstance(sizes, list) and named else []


def _parts(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scores of each part of a report that is written as a dict. See SeedsReport.parts."""
    parts = {str(each["sizes"]): _floats(each) for each in _sizes(report)}
    faithfulness = report.get("faithfulness")
    return parts | ({"faithfulness": _floats(faithfulness)} if isinstance(faithfulness, dict) else {})


def evaluate_seeds(
    task: type[RunTask], run: ChosenRun, seeds: Sequence[int], options: Mapping[str, Any]
) -> SeedsReport:
    """Evaluate each seed of a run folder with the same options. See RunTask.evaluate_run().

    Seeds without a run folder are left out, because their training has not started yet.
    """
    for name in FILES:
        if options.get(name) is not None:
            hint = f"evaluate one seed: regard evaluate {shell_word(seed_folder(run.folder, seeds[0]))}"
            raise ArgumentError(message(f"--{name}", "the run has several seeds", hint=hint))
    folders = {seed: seed_folder(run.folder, seed) for seed in seeds}
    reports = {
        seed: task.evaluate_run(ChosenRun(folder, run.checkpoint, run.device), options)
        for seed, folder in folders.items()
        if is_run(folder)
    }
    return SeedsReport(run.folder, reports)
