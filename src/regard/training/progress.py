"""Progress: where a run stands, as a checkpoint keeps it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from regard.errors import DataError, message

__all__ = ["Progress", "check_surroundings", "step_seed"]

LARGEST = 10**18
"""Steps, tokens and positions are below this."""


@dataclass
class Progress:
    """Where a run stands: all that decides how it goes on, besides the weights and the optimizer.

    step: steps taken. epoch, batch: where the next batch is. total: how many steps there will be, None while
    that is not known. minutes: what total was made from, if from minutes; every: after how many steps it is
    then judged. evaluated: the step last judged. best, best_loss, best_step: the best value so far, the loss
    then, and when. stale: evaluations since then. seconds, tokens: spent and seen so far. ended: why the
    run is over, "" as long as it is not.

    >>> Progress.read(Progress(step=3).written()).step
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

    def written(self) -> dict[str, Any]:
        """As state.json has it."""
        return asdict(self)

    def standing(self) -> tuple[Any, ...]:
        """What makes one checkpoint of a step differ from another."""
        return self.step, self.evaluated, self.total, self.ended

    def judged(self, value: float, lower_is_better: bool, loss: float | None = None) -> bool:
        """Take note of how good the model is by now; whether that is better than ever.

        Of two that are as good, the one with the lower loss is better: BLEU is 0 for as long as no four words
        are right, and the loss falls meanwhile.

        >>> at = Progress(step=5)
        >>> at.judged(2.0, lower_is_better=True), at.judged(2.5, lower_is_better=True), at.stale, at.best
        (True, False, 1, 2.0)
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

    def go_on(self, fresh: Progress) -> None:
        """Go on for as long as a run of these settings does that is begun now."""
        self.ended = ""
        if fresh.minutes is None or fresh.minutes != self.minutes:
            self.total, self.minutes, self.every = fresh.total, fresh.minutes, None

    @classmethod
    def read(cls, state: Mapping[str, Any], place: str = "state.json") -> Progress:
        """Read it from the content of state.json; other keys are ignored. place: names the file in errors."""
        found = {each.name: state[each.name] for each in fields(cls) if each.name in state}
        for each in fields(cls):
            if each.name in found and not _valid(found[each.name], str(each.type)):
                raise _damaged(place, each.name, found[each.name], str(each.type))
        return cls(**found)


def check_surroundings(state: Mapping[str, Any], place: str) -> None:
    """Check what state.json says about the machine and the log, which resuming needs."""
    for name, most in (("threads", 4096), ("processes", 10**6), ("batches", LARGEST)):
        value = state.get(name)
        if type(value) is not int or not 0 <= value <= most or (not value and name != "batches"):
            raise _damaged(place, name, value, f"a whole number up to {most:,}")
    log = state.get("log")
    position = log.get("position") if isinstance(log, dict) else None
    if not _valid(position, "int"):
        raise _damaged(place, "log.position", position, "int")


def _valid(value: object, kind: str) -> bool:
    """Whether a value from JSON is of this type, and a number of a sensible size."""
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
    """The seed of all that is random in one batch of one step of one process.

    Each step starts from its own, so that nothing random has to be remembered to go on as if never stopped.
    """
    text = f"{seed} {step} {place} {rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())
