"""The learning-rate schedules: the learning rate depends only on the number of the step or of the epoch."""

from __future__ import annotations

import math

from regard.training.settings import Training


def scheduled_rate(settings: Training, *, step: int, epoch: int, total: int | None) -> float:
    """Return the learning rate of a training step: linear growth to the peak in the warm-up, then a schedule.

    constant      the peak
    cosine        peak (1 + cos(pi done)) / 2, where `done` grows from 0 (end of the warm-up) to 1 (last step)
    inverse-root  peak sqrt(warmup_steps / step)                                 (Vaswani et al. 2017, eq. 3)
    epoch-decay   peak / decay_factor^ceil(max(epoch - decay_after, 0) / decay_every), also in the warm-up
                  (Zaremba et al. 2015, section 4.1, where decay_every is 1: decay_after=6, decay_factor=1.2
                  for the medium model, 14 and 1.15 for the large one)

    step, epoch: the number of the step and of its epoch, both counted from 1.
    total: number of steps of the run; None while it is unknown. The warm-up is at most half of it. While it
        is unknown, the cosine schedule is constant.

    >>> settings = Training(learning_rate=1.0, schedule="cosine", warmup_steps=2)
    >>> [scheduled_rate(settings, step=step, epoch=1, total=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    >>> settings = Training(learning_rate=1.0, schedule="epoch-decay", decay_after=6, warmup_steps=0)
    >>> scheduled_rate(settings, step=900, epoch=7, total=None) == 1 / 1.2
    True
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if total is not None:
        warmup = min(warmup, total // 2)
    if settings.schedule == "epoch-decay":
        peak *= settings.decay_factor ** -math.ceil(
            max(epoch - settings.decay_after, 0) / settings.decay_every
        )
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "cosine" and total is not None:
        done = (step - warmup) / max(total - warmup, 1)
        return peak * (0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))))
    if settings.schedule == "inverse-root":
        return peak * math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    return peak
