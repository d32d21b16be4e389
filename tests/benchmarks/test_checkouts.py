"""checkouts.py: versions of Regard in turns, and only if their results agree."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.checkouts import SEARCHES, TRAINING, disagreement, measured, table

SEARCH, TRAIN = next(iter(SEARCHES)), next(iter(TRAINING))


def test_checkouts_take_turns_and_agree():
    here = Path(__file__).parents[2]
    results, rows = measured([here, here], SEARCH, 1, threads=1)
    assert results[0] == results[1] and len(results[0]) == 24
    assert [len(own) for own in rows] == [1, 1]
    assert all(amount > 0 and 0 < seconds < math.inf for ((amount, seconds, _),) in rows)


@pytest.mark.parametrize(
    ("case", "second", "differs"),
    [
        (SEARCH, [4, 6], True),
        (SEARCH, [4, 5], False),
        (TRAIN, [4.0, 5.02], True),
        (TRAIN, [4.0, 5.001], False),
    ],
)
def test_results_that_differ_are_reported(case: str, second: list[float], differs: bool):
    assert bool(disagreement(case, [[4, 5], second])) is differs


def test_table_compares_the_same_turns():
    rows = [[(10.0, 1.0, 2.0), (10.0, 2.0, 2.0)], [(10.0, 0.5, 1.0), (10.0, 1.0, 1.0)]]
    _, second = table([Path("old"), Path("new")], TRAIN, rows).splitlines()
    assert second.split(" | ")[-2:] == ["2.00", "2.00 |"] and "| new |" in second
