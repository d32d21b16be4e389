"""Learning-rate schedules: functions of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["SCHEDULES", "decay_by_epoch", "learning_rate"]


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


def decay_by_epoch(epoch: int, *, rate: float, after: int, factor: float) -> float:
    """The learning rate of an epoch: constant up to epoch `after`, then divided by `factor` in each epoch.

    rate / factor^max(epoch - after, 0)          (Zaremba et al. 2015, section 4.1)

    epoch: counted from 1. after: 0 or more. factor: 1 or more. The medium model of the paper has rate 1,
    after 6 and factor 1.2; the large one rate 1, after 14 and factor 1.15.

    >>> [round(decay_by_epoch(epoch, rate=1.0, after=6, factor=1.2), 4) for epoch in (1, 6, 7, 8)]
    [1.0, 1.0, 0.8333, 0.6944]
    """
    if epoch < 1 or after < 0 or not 1 <= factor < math.inf:
        problem = f"epoch is {epoch}, after is {after}, factor is {factor}"
        expected = "epoch >= 1, after >= 0 and factor >= 1"
        raise ArgumentError(message("decay_by_epoch()", problem, expected=expected))
    return rate * factor ** -max(epoch - after, 0)
