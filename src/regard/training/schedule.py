"""Learning-rate schedules: functions of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.errors import UnknownName

__all__ = ["SCHEDULES", "learning_rate"]


def _constant(step: int, warmup_steps: int, total: int) -> float:
    return 1.0


def _cosine(step: int, warmup_steps: int, total: int) -> float:
    """Decay from 1 at the end of the warm-up to 0 at the last step."""
    done = (step - warmup_steps) / max(total - warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))


def _inverse_root(step: int, warmup_steps: int, total: int) -> float:
    """1 / sqrt(step), as in Vaswani et al. 2017 (eq. 3), scaled to 1 at the end of the warm-up."""
    return math.sqrt(max(warmup_steps, 1) / max(step, warmup_steps, 1))


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "inverse-root": _inverse_root,
}
"""Functions of (step, warm-up, total) that return the factor of the peak learning rate after the warm-up."""


def learning_rate(step: int, *, rate: float, schedule: str, warmup_steps: int, total: int | None) -> float:
    """The learning rate of a step: it grows linearly to `rate` during the warm-up, then follows the schedule.

    step: counted from 1. warmup_steps: at most half of the total are used. total: number of steps of the run;
    None while it is unknown: the cosine schedule is then constant.

    >>> [learning_rate(step, rate=1.0, schedule="cosine", warmup_steps=2, total=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if schedule not in SCHEDULES:
        raise UnknownName("schedule", schedule, SCHEDULES)
    if total is not None:
        warmup_steps = min(warmup_steps, total // 2)
    if step < warmup_steps:
        return rate * step / warmup_steps
    if total is None and schedule == "cosine":
        return rate
    return rate * SCHEDULES[schedule](step, warmup_steps, total or step)
