"""Budgets: how many steps a training takes, from steps, epochs or minutes."""

from __future__ import annotations

from regard.training.settings import Training

__all__ = ["evaluation_interval", "fitted", "is_known", "little", "total_steps"]

EPOCHS, LEAST, MOST = 30, 2_000, 100_000
"""How long is trained where nothing is said: so many epochs, in no fewer and no more steps than these."""

EVALUATIONS = 10
"""How often a run is judged where nothing is said."""

SOON, EARLY = 20, 0.25
"""The speed is known after the warm-up and so many steps, or after such a part of a wall-clock budget."""

LITTLE = 200
"""Fewer steps than that teach a model hardly anything, nor does less than one epoch."""

JUDGING, RESERVED = 0.2, 0.05
"""The part of a wall-clock budget that evaluations may take, and that which is kept for writing and error."""


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


def is_known(budget: float, seconds: float, step: int, settings: Training) -> bool:
    """Whether the speed of a run is known, when `step` of its steps took `seconds` of a budget.

    >>> is_known(100, seconds=2, step=10, settings=Training(warm_up=50))
    False
    """
    return step >= max(settings.warm_up, SOON) or seconds >= EARLY * budget


def fitted(budget: float, seconds: float, step: int, evaluation: float, every: int | None) -> tuple[int, int]:
    """How many steps fit in a budget of seconds, and after how many the model is judged.

    seconds: what `step` of them took. evaluation: what judging it once took after that. every: how often it
    is judged, where that was said; else so often that little of the time goes there.

    >>> fitted(100, seconds=10, step=50, evaluation=1.0, every=None)
    (420, 42)
    >>> fitted(100, seconds=10, step=50, evaluation=10.0, every=None)
    (375, 375)
    """
    left = max(budget * (1 - RESERVED) - seconds - evaluation, 0.0)
    pace = max(seconds / max(step, 1), 1e-9)
    if every is not None:
        return step + int(left / (pace + evaluation / every)), every
    count = max(min(int(JUDGING * left / max(evaluation, 1e-9)), EVALUATIONS), 1)
    total = step + int(max(left - count * evaluation, 0.0) / pace)
    return total, max(-(-total // count), 1)


def little(steps: int, epoch: float) -> str:
    """What is to be said of so few steps, where an epoch has so many; "" where they are enough to learn by.

    >>> little(28, epoch=100), little(150, epoch=50), little(2000, epoch=100)
    ('that is 0.28 of an epoch', 'that is 3 epochs, in 150 steps', '')
    """
    epochs = steps / max(epoch, 1.0)
    if epochs < 1:
        return f"that is {epochs:.2g} of an epoch"
    return f"that is {epochs:.2g} epochs, in {steps} steps" if steps < LITTLE else ""


def evaluation_interval(settings: Training, total: int | None) -> int | None:
    """After how many steps a run is judged; None while that is not known."""
    if settings.evaluate_every is not None:
        return settings.evaluate_every
    return None if total is None else max(-(-total // EVALUATIONS), 1)
