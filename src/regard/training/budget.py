"""Budgets: how many steps a training takes, from steps, epochs or minutes."""

from __future__ import annotations

from regard.training.settings import Training

__all__ = ["evaluation_interval", "steps_in", "total_steps"]

EPOCHS, LEAST, MOST = 30, 2_000, 100_000
"""How long is trained where nothing is said: so many epochs, in no fewer and no more steps than these."""

EVALUATIONS = 10
"""How often a run is judged where nothing is said."""

RESERVED = 0.1
"""The part of a wall-clock budget kept for evaluations, for writing, and for error."""


def total_steps(settings: Training, epoch: int) -> int | None:
    """The steps of a run with epochs of so many batches; None for minutes, until the speed is known.

    >>> total_steps(Training(epochs=2), epoch=50), total_steps(Training(minutes=3), epoch=50)
    (100, None)
    """
    if settings.steps is not None:
        return settings.steps
    if settings.minutes is not None:
        return None
    each = epoch / settings.accumulate
    if settings.epochs is not None:
        return max(round(settings.epochs * each), 1)
    return min(max(round(EPOCHS * each), LEAST), MOST)


def steps_in(budget: float, seconds: float, step: int, settings: Training) -> int | None:
    """The steps that fit in a budget of seconds, when `step` of them took `seconds`; None if too soon to say.

    >>> steps_in(100, seconds=10, step=50, settings=Training(warm_up=50))
    450
    >>> steps_in(100, seconds=2, step=10, settings=Training(warm_up=50)) is None
    True
    """
    known = step >= max(settings.warm_up, 20) or seconds >= 0.1 * budget
    if not known:
        return None
    left = max(budget * (1 - RESERVED) - seconds, 0.0)
    return step + int(left * step / max(seconds, 1e-9))


def evaluation_interval(settings: Training, total: int | None) -> int | None:
    """After how many steps a run is judged; None while that is not known."""
    if settings.evaluate_every is not None:
        return settings.evaluate_every
    return None if total is None else max(-(-total // EVALUATIONS), 1)
