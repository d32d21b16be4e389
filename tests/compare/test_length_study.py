"""The statistics of the study of length, on made-up BLEU scores."""

from __future__ import annotations

import pytest

from regard.compare.comparison_options import Options
from regard.compare.length_study import _verdicts, quality_series
from regard.compare.study import CONTRADICTED, SUPPORTED, UNCLEAR


def rows(scores: dict[str, list[float]], seeds: int) -> list[dict]:
    """Return rows of BLEU: for each model, one value per class of length; a little more for later seeds."""
    return [
        {"model": model, "seed": seed, "length": f"{at}-{at}", "bleu": value + seed / 100}
        for model, values in scores.items()
        for seed in range(seeds)
        for at, value in enumerate(values)
    ]


def test_bottleneck_is_about_the_share_that_is_lost():
    """10 BLEU that fall to 2 are a larger loss than 90 BLEU that fall to 70."""
    options = Options(models=("seq2seq", "bahdanau"), seeds=(0, 1, 2))
    measured = rows({"seq2seq": [10.0, 10.0, 2.0, 2.0], "bahdanau": [90.0, 90.0, 70.0, 70.0]}, 3)
    better, bottleneck = _verdicts(options, measured, [])
    assert (better.outcome, bottleneck.outcome) == (SUPPORTED, SUPPORTED)
    assert bottleneck.values[0] == pytest.approx(0.8 - 2 / 9)
    swapped = rows({"bahdanau": [10.0, 10.0, 2.0, 2.0], "seq2seq": [90.0, 90.0, 70.0, 70.0]}, 3)
    assert [verdict.outcome for verdict in _verdicts(options, swapped, [])] == [CONTRADICTED, CONTRADICTED]
    single = _verdicts(options, rows({"seq2seq": [10.0, 2.0], "bahdanau": [9.0, 7.0]}, 1), [])
    assert [verdict.outcome for verdict in single] == [UNCLEAR, UNCLEAR]


def test_lines_have_a_band_from_three_seeds_on():
    scores = {"bahdanau": [90.0, 70.0]}
    (line,) = quality_series(rows(scores, 3))
    assert line.x == ["0-0", "1-1"] and line.y == pytest.approx([90.01, 70.01])
    assert line.low[0] < line.y[0] < line.high[0]
    assert quality_series(rows(scores, 2))[0].low == ()
