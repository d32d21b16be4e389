"""The learning rate: what each schedule does, and that it depends on the step alone."""

from __future__ import annotations

import math

import pytest

from regard.errors import UnknownName
from regard.training.schedule import SCHEDULES, learning_rate


def rates(schedule: str, steps: range, warmup_steps: int, total: int | None) -> list[float]:
    return [
        learning_rate(s, rate=2.0, schedule=schedule, warmup_steps=warmup_steps, total=total) for s in steps
    ]


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
        learning_rate(1, rate=1.0, schedule="cosin", warmup_steps=1, total=2)
