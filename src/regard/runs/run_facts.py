"""Facts about a run folder, for `regard show`: settings, progress, evaluations, checkpoints and damage."""

from __future__ import annotations

import math
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from regard.errors import DataError, RegardError
from regard.files.untrusted import LIMITS, open_regular, parse_json
from regard.runs.run_folder import config_of, fingerprints_of
from regard.runs.run_task import RunTask, named_sizes
from regard.runs.stored_runs import WEIGHTS, checked_settings, outline, stored_scores
from regard.training.checkpoints.checkpoints import STATE, Averaged, Checkpoint, Checkpoints, averaged_from
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
    fingerprints: dict[str, str]
    parameters: int | None
    vocabulary: tuple[int, ...] | None
    progress: Progress | None
    averaged: Averaged | None
    losses: list[tuple[int, float]]
    evaluations: list[dict[str, Any]]
    checkpoints: list[Kept]
    notes: list[str]
    damaged: bool

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
