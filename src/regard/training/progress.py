"""Progress: the counters of a training run, such as its step and its best score. Checkpoints save them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from regard.errors import DataError, message

LARGEST = 10**18
"""Upper limit of numbers in state.json, such as steps and tokens. A file with a larger number is damaged."""


@dataclass
class Progress:
    """The counters of a training run. To resume a run, they are needed besides weights and optimizer state.

    step: number of completed steps.
    epoch: index of the current epoch, from 0.
    batch: index of the next batch within this epoch, from 0.
    total: number of steps of the whole run. None while it is unknown.
    minutes: the length of the run in minutes, from which `total` was computed. None if the length is not set
        in minutes.
    every: the number of steps between two evaluations, if the length of the run is set in minutes.
    evaluated: step of the last evaluation.
    best, best_loss, best_step: the best score so far, and the loss and the step of this evaluation.
    stale: number of evaluations since the best evaluation.
    seconds: duration of the run so far, without the time between a stop and a resume.
    tokens: number of target tokens so far.
    ended: why the run has ended, such as "completed all steps". "" while the run has not ended.

    >>> Progress.read({"step": 3}).step
    3
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    total: int | None = None
    minutes: float | None = None
    every: int | None = None
    evaluated: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    tokens: int = 0
    ended: str = ""

    def state(self) -> tuple[Any, ...]:
        """Return the counters (step, evaluated, total, ended), to decide whether a new checkpoint is needed.

        A new checkpoint is needed if one of these counters has changed since the last checkpoint. `step`
        alone is not enough, because the other counters can change while `step` stays the same.
        """
        return self.step, self.evaluated, self.total, self.ended

    def update_best(self, value: float, lower_is_better: bool, loss: float | None = None) -> bool:
        """Record the score of an evaluation at the current step; return whether it is the best so far.

        value: the score that selects the best checkpoint, such as BLEU.
        loss: the loss of the same evaluation.

        If the score equals the best score, the lower loss decides. For example, BLEU is 0 until a sequence of
        four words is right, but the loss decreases earlier.

        >>> at = Progress(step=5)
        >>> [at.update_best(loss, lower_is_better=True) for loss in (2.0, 2.5)], at.stale, at.best
        ([True, False], 1, 2.0)
        """
        self.evaluated = self.step
        sign = -1 if lower_is_better else 1
        better = self.best is None or math.isnan(self.best) or sign * value > sign * self.best
        if value == self.best and loss is not None and self.best_loss is not None:
            better = loss < self.best_loss or math.isnan(self.best_loss)
        if better:
            self.best, self.best_loss, self.best_step, self.stale = value, loss, self.step, 0
        else:
            self.stale += 1
        return better

    @classmethod
    def read(cls, state: Mapping[str, Any], place: str = "state.json") -> Progress:
        """Read the progress from the content of state.json. Keys that are not fields of Progress are ignored.

        place: the path of state.json, for error messages.
        """
        values = {each.name: state[each.name] for each in fields(cls) if each.name in state}
        for each in fields(cls):
            if each.name in values and not _valid(values[each.name], str(each.type)):
                raise _damaged(place, each.name, values[each.name], str(each.type))
        return cls(**values)


def check_surroundings(state: Mapping[str, Any], place: str) -> None:
    """Raise DataError if state.json has a damaged value, such as a negative number of threads.

    This function checks the values that Progress.read() does not read: "threads", "processes", "batches", and
    the "position" of the log.

    state: the content of state.json.
    place: the path of state.json, for error messages.
    """
    for name, most in (("threads", 4096), ("processes", 10**6), ("batches", LARGEST)):
        value = state.get(name)
        if type(value) is not int or not 0 <= value <= most or (not value and name != "batches"):
            raise _damaged(place, name, value, f"an integer up to {most:,}")
    log = state.get("log")
    position = log.get("position") if isinstance(log, dict) else None
    if not _valid(position, "int"):
        raise _damaged(place, "log.position", position, "int")


def _valid(value: object, kind: str) -> bool:
    """Return whether a value from JSON has the type `kind`, e.g. "int | None", and is not too large."""
    if value is None:
        return "None" in kind
    if kind.startswith("int"):
        return type(value) is int and 0 <= value < LARGEST
    if kind.startswith("float"):
        return type(value) is float or (type(value) is int and abs(value) < LARGEST)
    return isinstance(value, str)


def _damaged(place: str, name: str, value: object, expected: str) -> DataError:
    problem = f"{name} is {repr(value)[:60]}"
    return DataError(message(place, problem, expected=expected, hint="restore this file from a copy"))


def step_seed(seed: int, step: int, place: int, rank: int) -> int:
    """Return the random seed for one batch of one training step in one process.

    seed: random seed of the run.
    step: number of the step.
    place: index of the batch within the step.
    rank: index of the process.

    Every batch has its own seed. So checkpoints do not need the state of the random number generators.
    """
    text = f"{seed} {step} {place} {rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random number generators of the CPU and of this device.

    torch.manual_seed() would seed the generators of all device types, which takes a quarter of a millisecond.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.default_generator.manual_seed(seed)
        torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)
