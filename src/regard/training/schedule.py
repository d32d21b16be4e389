"""Learning-rate schedules: the learning rate depends only on the number of the step or of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.errors import ArgumentError, UnknownName, message
from regard.training.settings import Training

__all__ = ["SCHEDULES", "decay_by_epoch", "learning_rate", "scheduled_rate"]


def _constant(step: int, warmup_steps: int, total: int) -> float:
    return 1.0


def _cosine(step: int, warmup_steps: int, total: int) -> float:
    """Return the learning rate as a fraction of its peak: a cosine from 1 (warm-up) to 0 (step `total`)."""
    done = (step - warmup_steps) / max(total - warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))


def _inverse_root(step: int, warmup_steps: int, total: int) -> float:
    """Return the learning rate as a fraction of its peak: sqrt(warmup_steps / step) after the warm-up.

    See Vaswani et al. (2017), eq. 3.
    """
    return math.sqrt(max(warmup_steps, 1) / max(step, warmup_steps, 1))


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "inverse-root": _inverse_root,
}
"""The schedules by name. Each is a function of (step, warmup_steps, total) for the steps after the warm-up.
It returns the learning rate as a fraction of its peak."""


def learning_rate(step: int, *, rate: float, schedule: str, warmup_steps: int, total: int | None) -> float:
    """Return the learning rate of a training step: linear growth to `rate` in the warm-up, then the schedule.

    step: number of the step. The first step is 1.
    rate: the peak of the learning rate.
    schedule: name in SCHEDULES: "constant", "cosine" or "inverse-root".
    warmup_steps: number of steps of the warm-up. If it is larger than half of `total`, it is reduced to this.
    total: number of steps of the run. While it is unknown (None), the cosine schedule is constant.

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


def decay_by_epoch(epoch: int, *, rate: float, after: int, factor: float, every: int = 1) -> float:
    """Return the learning rate of an epoch: constant up to epoch `after`, then divided by powers of `factor`.

    rate / factor^ceil(max(epoch - after, 0) / every)          (Zaremba et al. 2015, section 4.1, every = 1)

    epoch: number of the epoch. The first epoch is 1.
    after: number of epochs with the learning rate `rate`, 0 or more.
    factor: 1 or more.
    every: number of epochs between two divisions, 1 or more.

    Values in the paper: rate=1, after=6, factor=1.2 (medium model); rate=1, after=14, factor=1.15 (large
    model).

    >>> [round(decay_by_epoch(epoch, rate=1.0, after=6, factor=1.2), 4) for epoch in (1, 6, 7, 8)]
    [1.0, 1.0, 0.8333, 0.6944]
    >>> [decay_by_epoch(epoch, rate=1.0, after=2, factor=2, every=3) for epoch in (2, 3, 5, 6)]
    [1.0, 0.5, 0.5, 0.25]
    """
    if epoch < 1 or after < 0 or every < 1 or not 1 <= factor < math.inf:
        problem = f"epoch is {epoch}, after is {after}, factor is {factor}, every is {every}"
        expected = "epoch >= 1, after >= 0, factor >= 1 and every >= 1"
        raise ArgumentError(message("decay_by_epoch()", problem, expected=expected))
    return rate * factor ** -math.ceil(max(epoch - after, 0) / every)


def scheduled_rate(settings: Training, *, step: int, epoch: int, total: int | None) -> float:
    """Return the learning rate of a training step, according to the schedule and the options in the settings.

    step, epoch: the number of the step and of its epoch, both counted from 1.
    total: number of steps of the run; None while it is unknown.

    >>> settings = Training(learning_rate=1.0, schedule="epoch-decay", decay_after=6, warmup_steps=0)
    >>> scheduled_rate(settings, step=900, epoch=7, total=None) == 1 / 1.2
    True
    """
    rate, schedule = settings.learning_rate, settings.schedule
    if schedule == "epoch-decay":
        rate = decay_by_epoch(
            epoch,
            rate=rate,
            after=settings.decay_after,
            factor=settings.decay_factor,
            every=settings.decay_every,
        )
        schedule = "constant"
    return learning_rate(step, rate=rate, schedule=schedule, warmup_steps=settings.warmup_steps, total=total)
