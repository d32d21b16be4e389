"""Learning rate schedules: warm-up, decay, and edge cases."""

from __future__ import annotations

import math

import pytest

from regard.errors import ArgumentError, UnknownName
from regard.training.schedule import SCHEDULES, decay_by_epoch, learning_rate, scheduled_rate
from regard.training.settings import Training


def rates(schedule: str, steps: range, warmup_steps: int, total: int | None) -> list[float]:
    return [
        learning_rate(s, rate=2.0, schedule=schedule, warmup_steps=warmup_steps, total=total) for s in steps
    ]


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


def test_unknown_schedule_raises_and_suggests_the_nearest():
    with pytest.raises(UnknownName, match="'cosine'"):
        learning_rate(1, rate=1.0, schedule="cosin", warmup_steps=1, total=2)


def test_decay_by_epoch_divides_by_the_factor_after_the_given_epoch():
    decayed = [decay_by_epoch(epoch, rate=2.0, after=3, factor=4.0) for epoch in range(1, 7)]
    assert decayed == [2.0, 2.0, 2.0, 0.5, 0.125, 0.03125]
    assert decay_by_epoch(2, rate=2.0, after=0, factor=4.0) == 0.125
    assert decay_by_epoch(10**6, rate=2.0, after=3, factor=4.0) == 0.0


def test_learning_rate_is_halved_every_15_epochs():
    """Sukhbaatar et al. 2015, section 4.2: here 14 epochs without decay come first."""
    settings = Training(learning_rate=1.0, schedule="epoch-decay", decay_after=14, decay_factor=2.0)
    settings = settings.model_copy(update={"decay_every": 15, "warmup_steps": 0})
    epochs = [14, 15, 29, 30, 44, 45, 60]
    decayed = [scheduled_rate(settings, step=9, epoch=epoch, total=None) for epoch in epochs]
    assert decayed == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 16]


@pytest.mark.parametrize(
    "options",
    [{"epoch": 0}, {"after": -1}, {"factor": 0.5}, {"factor": math.nan}, {"every": 0}],
)
def test_invalid_arguments_of_decay_by_epoch_raise(options: dict[str, float]):
    ((name, value),) = options.items()
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        decay_by_epoch(**{"epoch": 1, "rate": 1.0, "after": 2, "factor": 1.2, **options})  # type: ignore[arg-type]


def test_epoch_decay_follows_the_warm_up_and_the_epoch():
    settings = Training(
        learning_rate=2.0, schedule="epoch-decay", decay_after=2, decay_factor=4.0, warmup_steps=4
    )
    steps = ((1, 1), (4, 1), (90, 2), (91, 3), (140, 4))
    rates = [scheduled_rate(settings, step=step, epoch=epoch, total=1000) for step, epoch in steps]
    assert rates == [0.5, 2.0, 2.0, 0.5, 0.125]
