"""The scores of a run of several seeds, with mean, deviation and interval: for `show` and `evaluate`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.errors import ArgumentError, DataError, RegardError, message, printable, shell_word, shown
from regard.evaluation.confidence import Interval, interval
from regard.runs.run_commands import ChosenRun, RunReport
from regard.runs.run_facts import RunFacts, facts_of
from regard.runs.run_folder import failures_of, is_run, seed_folder, seeds_of
from regard.runs.run_task import RunTask
from regard.training.logs.live_table import GAP, in_words, metric_title

LONGEST_WORD = 24
"""Longer words, such as paths, may be wrapped in a FittedTable."""

WORD = re.compile(r"(?:± )?\S+")
"""What a FittedTable does not wrap: a word, or a deviation with its sign."""

FILES = ("output", "page")
"""Options of `regard evaluate` for files to write. For a run of several seeds, these options are an error,
because each seed would overwrite the file."""


def mean_text(name: str, score: Interval) -> str:
    """Return the mean and the standard deviation of a score over seeds as text.

    name: the name of the score. The number of digits depends on it.

    >>> mean_text("accuracy", interval([0.79, 0.81]))
    '0.800 ± 0.014'
    """
    deviation = "" if score.deviation is None else f" ± {in_words(name, score.deviation)}"
    return in_words(name, score.mean) + deviation


def summarised(scores: Iterable[Mapping[str, float]]) -> dict[str, Interval]:
    """Return mean, deviation and interval of each score over the seeds that have it."""
    rows = list(scores)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: interval(row[name] for row in rows if name in row) for name in names}


def written_summary(summary: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    """Return the mean, the sample standard deviation and the 95 % interval of each score, for JSON.

    The deviation is None for one seed, and the interval with fewer than three.
    """
    return {
        "mean": {name: each.mean for name, each in summary.items()},
        "deviation": {name: each.deviation for name, each in summary.items()},
        "interval": {
            name: None if each.low is None else [each.low, each.high] for name, each in summary.items()
        },
    }


def scores_table(
    scores: Mapping[int, Mapping[str, float]], others: Mapping[int, Mapping[str, str]] | None = None
) -> Table:
    """Return a table of scores with a row for each seed, and rows of their means and intervals.

    A mean is shown with its deviation, e.g. "0.800 ± 0.012". The 95 % confidence interval of the mean needs
    three seeds.

    scores: for each seed, the scores by name.
    others: for each seed, the cells of further columns as text, by column name.
    """
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    more = list(dict.fromkeys(name for row in (others or {}).values() for name in row))
    table = FittedTable(("best step", *map(metric_title, names[:0:-1])))
    for name in ("seed", *map(metric_title, names), *more):
        table.add_column(Text(name), justify="right")
    for seed in dict.fromkeys((*scores, *(others or {}))):
        row, other = scores.get(seed, {}), (others or {}).get(seed, {})
        cells = [in_words(name, row[name]) if name in row else "" for name in names]
        table.add_row(str(seed), *cells, *(Text(other.get(name, "")) for name in more))
    summary = summarised(scores.values())
    if len(scores) > 1:
        table.add_row("mean", *(mean_text(name, summary[name]) for name in names), style="bold")
    if any(each.low is not None for each in summary.values()):
        table.add_row("95 %", *(interval_text(name, summary[name]) for name in names), style="dim")
    return table


def interval_text(name: str, score: Interval) -> str:
    """Return the 95 % confidence interval of the mean of a score; "" if it has none.

    >>> interval_text("accuracy", interval([0.79, 0.80, 0.81]))
    '0.775 to 0.825'
    """
    if score.low is None or score.high is None:
        return ""
    return f"{in_words(name, score.low)} to {in_words(name, score.high)}"


class FittedTable(Table):
    """A table whose words and numbers are not cut.

    If the table is too wide, cells and titles are wrapped between words, but not after "±". If that is not
    enough, columns are left out, and at last, long words are wrapped.

    optional: the titles of columns that can be left out, the least important first.
    """

    def __init__(self, optional: Iterable[str] = ()):
        super().__init__(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        self.optional = tuple(optional)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        texts = [[str(text) for text in (column.header, *column.cells)] for column in self.columns]
        words = [max(map(cell_len, WORD.findall("\n".join(each))), default=1) for each in texts]
        least = [min(each, LONGEST_WORD) for each in words]
        most = [max(map(cell_len, each)) for each in texts]
        chosen = list(range(len(self.columns)))
        room = options.max_width
        for title in self.optional:
            if sum(least[at] for at in chosen) + GAP * (len(chosen) - 1) > room:
                chosen = [at for at in chosen if texts[at][0] != title]
        room -= GAP * (len(chosen) - 1)
        widths = {at: least[at] for at in chosen}
        while sum(widths.values()) > max(room, len(chosen)):
            widths[max(widths, key=lambda at: widths[at])] -= 1
        spare = room - sum(widths.values())
        for left, at in enumerate(sorted(chosen, key=lambda at: most[at] - least[at]), 1 - len(chosen)):
            more = min(max(most[at] - widths[at], 0), max(spare, 0) // (1 - left))
            widths[at], spare = widths[at] + more, spare - more
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        table.caption, table.caption_justify = self.caption, self.caption_justify
        table.title, table.title_justify, table.title_style = self.title, self.title_justify, self.title_style
        for at in chosen:
            column = self.columns[at]
            table.add_column(column.header, justify=column.justify, width=widths[at], overflow="fold")
        columns = [
            [
                cell.replace(" ±", "\n±") if isinstance(cell, str) and cell_len(cell) > widths[at] else cell
                for cell in self.columns[at].cells
            ]
            for at in chosen
        ]
        for row, cells in zip(self.rows, zip(*columns, strict=True), strict=True):
            table.add_row(*cells, style=row.style)
        yield table


@dataclass(frozen=True)
class SeedFacts:
    """The facts about a run of several seeds, which `regard show` prints.

    runs: the facts about the run of each seed.
    failed: the error message of each seed whose training has failed.
    notes: which files could not be read, and why.
    """

    folder: Path
    seeds: list[int]
    runs: dict[int, RunFacts] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> dict[int, dict[str, float]]:
        """The scores of the best checkpoint of each seed, such as {0: {"loss": 3.1, "bleu": 12.5}}.

        Seeds that have failed, or have not been evaluated yet, are left out.
        """
        best = {seed: run.best for seed, run in self.runs.items() if seed not in self.failed}
        return {
            seed: {name: value for name, value in each.items() if name != "step"}
            for seed, each in best.items()
            if each is not None
        }

    @property
    def summary(self) -> dict[str, Interval]:
        """Mean, deviation and confidence interval of each score over the seeds in `scores`."""
        return summarised(self.scores.values())

    @property
    def status(self) -> str:
        """How many seeds have finished training, and how many have failed: "3 of 5 seeds ended, 1 failed"."""
        going = [run.progress for seed, run in self.runs.items() if seed not in self.failed]
        ended = sum(bool(each and each.ended) for each in going)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{ended} of {len(self.seeds)} seeds ended{failed}"

    def written(self) -> dict[str, Any]:
        """Return the facts about all seeds as a dict that can be written as JSON."""
        return {
            "folder": str(self.folder),
            "seeds": self.seeds,
            **written_summary(self.summary),
            "standing": self.status,
            "failed": {str(seed): text for seed, text in self.failed.items()},
            "notes": self.notes,
            "runs": {str(seed): run.written() for seed, run in self.runs.items()},
        }


def seed_facts_of(task: type[RunTask], folder: Path) -> SeedFacts | None:
    """Read the facts about a run of several seeds. The result for a run of one seed is None."""
    seeds = seeds_of(folder)
    if seeds is None:
        return None
    notes: list[str] = []
    failed: dict[int, str] = {}
    try:
        failed = {seed: text for seed, (_, text) in failures_of(folder).items()}
    except DataError as error:
        notes.append(str(error).splitlines()[0])
    runs: dict[int, RunFacts] = {}
    for seed in seeds:
        place = seed_folder(folder, seed)
        if not is_run(place):
            notes.append(f"seed {seed} has no run folder yet")
            continue
        try:
            runs[seed] = facts_of(task, place)
        except RegardError as error:
            notes.append(str(error).splitlines()[0])
    return SeedFacts(folder, seeds, runs, failed, notes)


@dataclass(frozen=True, eq=False)
class SeedsReport:
    """The evaluation of a run of several seeds, with the mean and deviation of each score over the seeds.

    folder: the run folder.
    reports: the result of RunTask.evaluate_run() for each seed.
    """

    folder: Path
    reports: Mapping[int, RunReport]

    @property
    def parts(self) -> dict[str, dict[int, dict[str, float]]]:
        """The scores of each part of the reports, by the name of the part and the seed.

        The part "" is the whole report: the floats in Report.to_dict(), and those in its list or dict
        "scores", by their names. The integers are left out, because they are counts. Other parts are the
        sizes of algorithmic sequences, such as "length 20", and "faithfulness". For example,
        {"": {0: {"BLEU": 12.5}}}.
        """
        parts: dict[str, dict[int, dict[str, float]]] = {"": {}}
        for seed, report in self.reports.items():
            whole = report.to_dict()
            listed = whole.get("scores", {})
            if isinstance(listed, list):
                listed = {str(each["name"]): each["value"] for each in listed}
            named = {"": {**listed, **whole}, "faithfulness": whole.get("faithfulness")}
            for each in whole.get("sizes") or ():
                if isinstance(each, dict) and "sizes" in each:
                    named[str(each["sizes"])] = each
            for name, values in named.items():
                if isinstance(values, dict):
                    floats = {key: value for key, value in values.items() if isinstance(value, float)}
                    parts.setdefault(name, {})[seed] = floats
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
            **parts.pop(""),
            **({"parts": parts} if parts else {}),
            "seeds": {str(seed): report.to_dict() for seed, report in self.reports.items()},
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(f"{shown(self.folder)}: {len(self.reports)} seeds, mean ± sample standard deviation")
        parts = self.parts
        whole = parts.pop("")
        if not parts.keys() - {"faithfulness"}:  # the scores of all sizes are those of one of them
            yield scores_table(whole)
        for name, scores in parts.items():
            yield Text(f"\n{printable(name)}", "cyan")
            yield scores_table(scores)
        notes = [report.to_dict().get("notes") for report in self.reports.values()]
        for note in dict.fromkeys(each for some in notes if isinstance(some, list) for each in some):
            yield Text(printable(str(note)), "dim")


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
