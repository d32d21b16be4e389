"""Schedules: the learning rate as a function of the step, and of nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.errors import UnknownName

__all__ = ["SCHEDULES", "learning_rate"]


def _constant(step: int, warm_up: int, total: int) -> float:
    return 1.0


def _cosine(step: int, warm_up: int, total: int) -> float:
    """From 1 at the end of the warm-up to 0 at the end."""
    done = (step - warm_up) / max(total - warm_up, 1)
    return 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))


def _inverse_root(step: int, warm_up: int, total: int) -> float:
    """One over the root of the step, as in Vaswani et al. 2017 (eq. 3), scaled to 1 at the warm-up's end."""
    return math.sqrt(max(warm_up, 1) / max(step, warm_up, 1))


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "inverse-root": _inverse_root,
}
"""By name, the part of the highest rate that a step after the warm-up gets."""


def learning_rate(step: int, *, rate: float, schedule: str, warm_up: int, total: int | None) -> float:
    """The rate of a step, counted from 1: linear up to `rate` over the warm-up, then as the schedule says.

    total: how many steps there will be; None while that is not known yet, which holds the rate where it is.
    The warm-up takes no more than half of them.

    >>> [learning_rate(step, rate=1.0, schedule="cosine", warm_up=2, total=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if schedule not in SCHEDULES:
        raise UnknownName("schedule", schedule, SCHEDULES)
    if total is not None:
        warm_up = min(warm_up, total // 2)
    if step < warm_up:
        return rate * step / warm_up
    if total is None and schedule == "cosine":
        return rate
    return rate * SCHEDULES[schedule](step, warm_up, total or step)
