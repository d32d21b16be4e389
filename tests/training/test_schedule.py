"""The learning rate: what each schedule does, and that it depends on the step alone."""

from __future__ import annotations

import math

import pytest

from regard.errors import ArgumentError, UnknownName
from regard.training.schedule import SCHEDULES, decay_by_epoch, learning_rate


def rates(schedule: str, steps: range, warm_up: int, total: int | None) -> list[float]:
    return [learning_rate(s, rate=2.0, schedule=schedule, warm_up=warm_up, total=total) for s in steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_rises_evenly_over_the_warm_up(schedule: str):
    assert rates(schedule, range(1, 5), 4, 100) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_never_rises_after_that(schedule: str):
    found = rates(schedule, range(10, 101), 10, 100)
    assert found == sorted(found, reverse=True) and found[0] == 2.0


def test_where_each_ends():
    assert rates("constant", range(100, 101), 10, 100) == [2.0]
    assert rates("cosine", range(100, 101), 10, 100) == [0.0]
    assert rates("cosine", range(55, 56), 10, 100) == pytest.approx([1.0])
    assert rates("inverse-root", range(40, 41), 10, 100) == [2.0 * math.sqrt(1 / 4)]


def test_a_warm_up_longer_than_the_run_is_cut_to_half_of_it():
    assert rates("cosine", range(5, 6), 400, 10) == [2.0]
    assert rates("cosine", range(10, 11), 400, 10) == [0.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_warm_up_and_runs_of_one_step(schedule: str):
    assert all(math.isfinite(rate) for rate in rates(schedule, range(1, 4), 0, 3))
    assert all(rate >= 0 for rate in rates(schedule, range(1, 2), 5, 1))


def test_it_stays_where_it_is_while_nobody_knows_the_end():
    assert rates("cosine", range(10, 13), 10, None) == [2.0, 2.0, 2.0]


def test_an_unknown_one_is_named():
    with pytest.raises(UnknownName, match="did you mean 'cosine'"):
        learning_rate(1, rate=1.0, schedule="cosin", warm_up=1, total=2)


def test_decay_by_epoch_divides_by_the_factor_after_the_given_epoch():
    found = [decay_by_epoch(epoch, rate=2.0, after=3, factor=4.0) for epoch in range(1, 7)]
    assert found == [2.0, 2.0, 2.0, 0.5, 0.125, 0.03125]
    assert decay_by_epoch(2, rate=2.0, after=0, factor=4.0) == 0.125
    assert decay_by_epoch(10**6, rate=2.0, after=3, factor=4.0) == 0.0


@pytest.mark.parametrize("options", [{"epoch": 0}, {"after": -1}, {"factor": 0.5}, {"factor": math.nan}])
def test_invalid_arguments_of_decay_by_epoch_raise(options: dict[str, float]):
    ((name, value),) = options.items()
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        decay_by_epoch(**{"epoch": 1, "rate": 1.0, "after": 2, "factor": 1.2, **options})  # type: ignore[arg-type]
