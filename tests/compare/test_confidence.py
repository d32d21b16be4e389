"""Intervals over seeds, verdicts, slopes, and lines over seeds."""

from __future__ import annotations

import math

import pytest

from regard.compare.study import (
    CONTRADICTED,
    NOT_MEASURED,
    SUPPORTED,
    UNCLEAR,
    Claim,
    fitted_slope,
    judge,
    lines_of,
    summary,
)
from regard.evaluation.confidence import interval
from tests.facts import mentions

CLAIM = Claim("a.b", "A is larger than B.")


def test_interval_is_that_of_student_t():
    found = interval([10.0, 12.0, 14.0, 16.0])
    half = 3.182 * math.sqrt(20 / 3) / 2
    assert (found.mean, found.seeds) == (13.0, 4)
    assert found.low == pytest.approx(13 - half) and found.high == pytest.approx(13 + half)
    assert found.deviation == pytest.approx(math.sqrt(20 / 3))
    two, one = interval([10.0, 12.0]), interval([10.0])
    assert two.deviation == pytest.approx(math.sqrt(2)) and one.deviation is two.low is one.high is None


def test_table_has_the_mean_the_deviation_and_the_interval_of_each_model():
    rows = [{"model": "a", "seed": seed, "bleu": 10.0 + seed} for seed in range(3)]
    rows += [{"model": "b", "seed": 0, "bleu": 4.0, "entropy": None}]
    first, second = summary(rows, ["bleu", "entropy"])
    found = interval([10.0, 11.0, 12.0])
    assert first == {
        "model": "a",
        "score": "bleu",
        "mean": 11.0,
        "deviation": 1.0,
        "low": found.low,
        "high": found.high,
        "seeds": 3,
    }
    assert (second["mean"], second["deviation"], second["low"], second["seeds"]) == (4.0, None, None, 1)


def test_lines_are_means_over_seeds_with_a_band_from_three_seeds_on():
    rows = [
        {"model": model, "seed": seed, "length": bin, "bleu": value * (1 + seed)}
        for model in ("a", "b")
        for seed in range(3 if model == "a" else 2)
        for bin, value in (("2-5", 9.0), ("6-9", 1.0))
    ]
    first, second = lines_of(rows, "model", "length", "bleu")
    assert (first.label, first.x, first.y) == ("a", ["2-5", "6-9"], [18.0, 2.0])
    assert first.low[0] < 18.0 < first.high[0] and not second.low
    (geometric,) = lines_of(rows[:6], "model", "length", "bleu", geometric=True)
    assert geometric.y == pytest.approx([9 * 6 ** (1 / 3), 6 ** (1 / 3)])
    assert geometric.low[0] * geometric.high[0] == pytest.approx(geometric.y[0] ** 2)
    assert lines_of(rows, "model", "length", "bleu", band=False)[0].low == ()


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1.0, 1.2, 1.1], SUPPORTED),
        ([-1.0, -1.2, -1.1], CONTRADICTED),
        ([1.0, -1.2, 0.1], UNCLEAR),
        ([1.0, 1.1], UNCLEAR),
        ([5.0], UNCLEAR),
        ([], NOT_MEASURED),
    ],
)
def test_a_verdict_needs_three_seeds_and_an_interval_on_one_side(values, outcome):
    verdict = judge(CLAIM, values, "A minus B")
    assert verdict.outcome == outcome and verdict.values == tuple(values)
    assert (verdict.low is None) == (len(values) < 3)


def test_one_seed_is_named():
    assert mentions(judge(CLAIM, [5.0], "A").reason, UNCLEAR, "seed")
    assert judge(CLAIM, [5.0, 6.0], "A", "repetitions").reason.endswith("repetitions")


@pytest.mark.parametrize(
    ("values", "outcome"),
    [([1.95, 2.0, 2.05], SUPPORTED), ([3.0, 3.01, 3.02], CONTRADICTED), ([2.0, 2.6, 1.4], UNCLEAR)],
)
def test_a_value_agrees_with_theory_within_the_tolerance(values, outcome):
    assert judge(CLAIM, values, "exponent", least=1.7, most=2.3).outcome == outcome


def test_nan_is_not_a_value():
    assert judge(CLAIM, [1.0, math.nan, 1.1], "A").outcome == UNCLEAR


def test_slopes():
    x = [8, 16, 32, 64]
    assert fitted_slope(x, [5 * n**1.5 for n in x], log="xy") == pytest.approx(1.5)
    assert fitted_slope(x, [math.exp(-0.3 * n) for n in x], log="y") == pytest.approx(-0.3)
