"""Facts about a run folder, for `regard show`: settings, progress, evaluations, checkpoints and damage.

For a run of several seeds, also the scores of each seed, with mean, deviation and interval.
"""

from __future__ import annotations

import math
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.errors import ArgumentError, DataError, RegardError, message, printable, shell_word, shown
from regard.evaluation.confidence import Interval, interval
from regard.files.untrusted import LIMITS, open_regular, parse_json
from regard.runs.run_commands import ChosenRun, RunReport
from regard.runs.run_folder import config_of, failures_of, fingerprints_of, is_run, seed_folder, seeds_of
from regard.runs.run_task import RunTask, named_sizes
from regard.runs.stored_runs import WEIGHTS, checked_settings, outline, stored_scores
from regard.training.checkpoints.checkpoints import STATE, Averaged, Checkpoint, Checkpoints, averaged_from
from regard.training.logs.live_table import GAP, in_words, metric_title
from regard.training.progress import Progress
from regard.training.settings import Section, build

NO_SCORES = ("kind", "time", "best")
"""What the record of an evaluation in log.jsonl has besides its step and its scores."""


@dataclass(frozen=True)
class Kept:
    """Facts about one checkpoint in a run folder, which `regard show` prints.

    step: the training step at which the checkpoint was saved.
    size: size of its files in bytes.
    marks: "best" if it is the best checkpoint of the run, and "latest" if it is the latest checkpoint.
    damage: what is damaged in the checkpoint. "" if it is intact.
    """

    step: int
    size: int
    marks: tuple[str, ...] = ()
    damage: str = ""


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run, which `regard show` prints.

    kind: the task class.
    settings: the settings of the run, without the folders of its data files.
    vocabulary: the sizes that the model depends on, such as the source and target vocabulary sizes.
    losses: training losses, as (step, loss).
    evaluations: the training step and the scores of each evaluation, such as {"step": 500, "loss": 3.1}.
    notes: which files of the run folder could not be read, and why.
    damaged: whether the run cannot be loaded.
    """

    folder: Path
    kind: type[RunTask]
    settings: Any
    fingerprints: dict[str, str] = field(default_factory=dict)
    parameters: int | None = None
    vocabulary: tuple[int, ...] | None = None
    progress: Progress | None = None
    averaged: Averaged | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: bool = False

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.settings.task)

    @property
    def model(self) -> dict[str, Any]:
        """The name of the model and its options."""
        return {"name": self.settings.model.name, **self.settings.model.options}

    @property
    def data(self) -> dict[str, Any]:
        """The data settings that differ from the default, and those that are always shown."""
        data = self.settings.data
        changed, always = _changed(data), self.kind.settings_type.always_shown
        names = [name for name in (*type(data).model_fields, *changed) if name in changed or name in always]
        return {name: changed.get(name, getattr(data, name, None)) for name in names if name != "max_length"}

    @property
    def changed(self) -> dict[str, Any]:
        """The other settings that differ from the default."""
        return _changed(self.settings, skipped=("data", "model"))

    @property
    def best_metric(self) -> str:
        """The score that selects the best checkpoint."""
        return self.settings.training.best or self.kind.best

    @property
    def best(self) -> dict[str, Any] | None:
        """The element of `evaluations` with the best value of best_metric, or None if it is empty.

        If several evaluations have the best value, the result is the evaluation with the lowest loss.
        """
        metric = self.best_metric
        scored = [each for each in self.evaluations if math.isfinite(each.get(metric, math.nan))]
        sign = -1 if self.kind.metrics.get(metric) == "lower" else 1
        return max(scored, key=lambda each: (sign * each[metric], -each.get("loss", math.inf)), default=None)

    @property
    def quality(self) -> str:
        """A sentence about the model if its scores are poor, otherwise ""."""
        return str(self.settings.describe_quality(self.best or {}))

    @property
    def sizes(self) -> str:
        """The sizes in `vocabulary` with their names, as text such as "8,000 source, 8,000 target"."""
        return "" if self.vocabulary is None else named_sizes(self.kind, self.vocabulary)

    @property
    def status(self) -> str:
        """Why training has ended, such as "completed all steps", or "not finished" if it has not ended.

        Before the first checkpoint, the status is "started, no checkpoint yet".
        """
        if self.progress is None:
            return "started, no checkpoint yet"
        return self.progress.ended or "not finished"

    def written(self) -> dict[str, Any]:
        """Return the facts about the run as a dict that can be written as JSON."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)[3:-1]}
        for name in ("progress", "averaged"):
            stored[name] = stored[name] and asdict(stored[name])
        return {
            "folder": str(self.folder),
            **{name: getattr(self, name) for name in ("task", "model", "data", "changed")},
            **stored,
            "checkpoints": list(map(asdict, self.checkpoints)),
            "judged_by": self.best_metric,
            "quality": self.quality,
            "best": self.best,
            "standing": self.status,
        }


def facts_of(task: type[RunTask], folder: Path) -> RunFacts:
    """Read the settings, log and checkpoints of a run. Raise DataError if `folder` is not a run folder."""
    config = task.settings_type.without_folders(config_of(folder))
    settings = build(task.settings_type, config, str(folder / "config.toml"))
    notes: list[str] = []
    try:
        checked_settings(task, folder)
    except DataError as error:
        notes.extend(str(error).splitlines())
    damaged = bool(notes)
    parameters = vocabulary = None
    try:
        vocabulary = task.stored_sizes(folder, settings)
        model = outline(task, settings.model, vocabulary, folder)
        parameters = sum(each.numel() for each in model.parameters())
    except RegardError as error:
        vocabulary, damaged = None, True
        notes.append(str(error).splitlines()[0])
    kept = list(_kept(folder))
    progress, averaged = _state(folder, kept, notes)
    losses, evaluations = _logged(folder / "log.jsonl", notes)
    fingerprints: dict[str, str] | None = None
    try:
        fingerprints = fingerprints_of(folder)
    except DataError as error:
        notes.append(str(error).splitlines()[0])
    if averaged is not None and not evaluations:  # a copy of a checkpoint has its scores
        copied = [{"step": each.step, **stored_scores(each)} for each in Checkpoints(folder).all()[-1:]]
        evaluations = [each for each in copied if len(each) > 1]
    read = (parameters, vocabulary, progress, averaged, losses, evaluations, kept, notes, damaged)
    return RunFacts(folder, task, settings, fingerprints or {}, *read)


def _state(folder: Path, kept: list[Kept], notes: list[str]) -> tuple[Progress | None, Averaged | None]:
    """Read state.json of the newest checkpoint with intact weights.

    Return the progress of this checkpoint, and which checkpoints were averaged to create it (None if it is
    not an average). If there is no such checkpoint, or if state.json is damaged, both results are None.

    kept: the facts about all checkpoints.
    notes: a list to which a message about a damaged state.json is appended.
    """
    intact = {each.step for each in kept if not each.damage}
    checkpoints = Checkpoints(folder).all()
    newest = [each for each in checkpoints if each.step in intact or not _damage(each, WEIGHTS)][-1:]
    try:
        for each in newest:
            state, place = each.state, str(each.path / STATE)
            return Progress.read(state, place), averaged_from(state, place)
    except DataError as error:
        notes.append(str(error).splitlines()[0])
    return None, None


def _records(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each line of log.jsonl. Invalid lines are skipped.

    notes: a list to which messages are appended: how many lines were invalid (such as an incomplete last
        line), and whether the file cannot be read or is too large.
    """
    invalid, read = 0, 0
    try:
        with open(path, "rb", opener=open_regular) as file:
            while (line := file.readline(LIMITS["log line"])) and (read := read + len(line)) <= LIMITS["log"]:
                record: Any = None
                with suppress(ValueError):
                    record = parse_json(line)
                step = record.get("step", 0) if isinstance(record, dict) else None
                if type(step) is int and 0 <= step < 10**18:
                    yield record
                elif line.strip():
                    invalid += 1
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
        return
    if read > LIMITS["log"]:
        notes.append(f"{path.name}: only the first {LIMITS['log']:,} bytes are read")
    if invalid:
        notes.append(f"{path.name} has {invalid} invalid lines")


def nonfinite_step(folder: Path) -> tuple[int, str] | None:
    """Return the step and the problem of a run that has stopped because a number was not finite; or None."""
    last = deque(_records(folder / "log.jsonl", []), 1)
    if not last or last[0].get("kind") != "nonfinite":
        return None
    return int(last[0].get("step", 0)), str(last[0].get("text", ""))


def _logged(path: Path, notes: list[str]) -> tuple[list[tuple[int, float]], list[dict[str, Any]]]:
    """Read log.jsonl and return RunFacts.losses and RunFacts.evaluations.

    notes: a list to which messages are appended if the file is damaged or cannot be read.
    """
    losses, evaluations = [], []
    for each in _records(path, notes):
        loss = _number(each.get("loss"))
        if each.get("kind") == "evaluation":
            scores = ((name, _number(value)) for name, value in each.items() if name not in NO_SCORES)
            evaluations.append({name: value for name, value in scores if value is not None})
        elif each.get("kind") == "training" and "step" in each and loss is not None and math.isfinite(loss):
            losses.append((each["step"], loss))
    return losses, evaluations


def _number(value: object) -> float | None:
    """Return the number in a JSON value: a number, or text such as "NaN". None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return value if isinstance(value, int) and abs(value) < 10**18 else number


def _kept(folder: Path) -> Iterator[Kept]:
    """Yield the facts about each checkpoint of a run. All files are read completely, to detect damage."""
    checkpoints = Checkpoints(folder)
    for each in checkpoints.all():
        marks = tuple(name for name in ("best", "latest") if checkpoints.pointed_step(name) == each.step)
        damage = _damage(each)
        with suppress(FileNotFoundError):  # a run that is still training may have deleted an old checkpoint
            files = [path.lstat() for path in each.path.iterdir()]
            size = sum(file.st_size for file in files if stat.S_ISREG(file.st_mode))
            yield Kept(each.step, size, marks, damage)


def _damage(checkpoint: Checkpoint, tensors: Sequence[str] | None = None) -> str:
    try:
        checkpoint.verify(tensors)
    except DataError as error:
        return error.message.problem
    return ""


def _changed(section: Section, skipped: tuple[str, ...] = (), above: str = "") -> dict[str, Any]:
    """Return the settings that differ from their default, as a dict such as {"training.ema": 0.999}.

    skipped: names of settings to leave out.
    above: the prefix of the names, such as "training.", for a section within the settings.
    """
    changed: dict[str, Any] = {}
    for name, about in type(section).model_fields.items():
        value = getattr(section, name)
        if name in skipped or value is None:
            continue
        if isinstance(value, Section):
            changed |= _changed(value, above=f"{above}{name}.")
        elif value != about.get_default(call_default_factory=True):
            changed[f"{above}{name}"] = value
    return changed


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
