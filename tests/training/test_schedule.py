"""Learning rate schedules: warm-up, decay, and edge cases."""

from __future__ import annotations

import math

import pytest

from regard.training.gradients import scheduled_rate
from regard.training.settings import Training

SCHEDULES = ("constant", "cosine", "inverse-root", "epoch-decay")


def rates(schedule: str, steps: range, warmup_steps: int, total: int | None) -> list[float]:
    settings = Training.model_validate(
        {"learning_rate": 2.0, "schedule": schedule, "warmup_steps": warmup_steps}
    )
    return [scheduled_rate(settings, step=step, epoch=1, total=total) for step in steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_rises_linearly_during_warm_up(schedule: str):
    assert rates(schedule, range(1, 5), 4, 100) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_never_rises_after_warm_up(schedule: str):
    decay = rates(schedule, range(10, 101), 10, 100)
    assert decay == sorted(decay, reverse=True) and decay[0] == 2.0


def test_last_learning_rate_of_each_schedule():
    assert rates("constant", range(100, 101), 10, 100) == [2.0]
    assert rates("cosine", range(100, 101), 10, 100) == [0.0]
    assert rates("cosine", range(55, 56), 10, 100) == pytest.approx([1.0])
    assert rates("inverse-root", range(40, 41), 10, 100) == [2.0 * math.sqrt(1 / 4)]


def test_warm_up_is_at_most_half_of_the_run():
    assert rates("cosine", range(5, 6), 400, 10) == [2.0]
    assert rates("cosine", range(10, 11), 400, 10) == [0.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_warm_up_and_single_step_runs_are_finite(schedule: str):
    assert all(math.isfinite(rate) for rate in rates(schedule, range(1, 4), 0, 3))
    assert all(rate >= 0 for rate in rates(schedule, range(1, 2), 5, 1))


def test_learning_rate_is_constant_while_the_total_is_unknown():
    assert rates("cosine", range(10, 13), 10, None) == [2.0, 2.0, 2.0]


def test_decay_divides_by_the_factor_after_the_given_epoch():
    def decayed(after: int, *epochs: int) -> list[float]:
        settings = Training(learning_rate=2.0, schedule="epoch-decay", decay_after=after, decay_factor=4.0)
        return [scheduled_rate(settings, step=999, epoch=epoch, total=None) for epoch in epochs]

    assert decayed(3, 1, 2, 3, 4, 5, 6) == [2.0, 2.0, 2.0, 0.5, 0.125, 0.03125]
    assert decayed(0, 2) == [0.125] and decayed(3, 10**6) == [0.0]


def test_learning_rate_is_halved_every_15_epochs():
    """Sukhbaatar et al. 2015, section 4.2: here 14 epochs without decay come first."""
    settings = Training(learning_rate=1.0, schedule="epoch-decay", decay_after=14, decay_factor=2.0)
    settings = settings.model_copy(update={"decay_every": 15, "warmup_steps": 0})
    epochs = [14, 15, 29, 30, 44, 45, 60]
    decayed = [scheduled_rate(settings, step=9, epoch=epoch, total=None) for epoch in epochs]
    assert decayed == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 16]


def test_epoch_decay_follows_the_warm_up_and_the_epoch():
    settings = Training(
        learning_rate=2.0, schedule="epoch-decay", decay_after=2, decay_factor=4.0, warmup_steps=4
    )
    steps = ((1, 1), (4, 1), (90, 2), (91, 3), (140, 4))
    rates = [scheduled_rate(settings, step=step, epoch=epoch, total=1000) for step, epoch in steps]
    assert rates == [0.5, 2.0, 2.0, 0.5, 0.125]
