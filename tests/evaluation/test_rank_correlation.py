"""Rank correlations and distances against hand computations."""

from __future__ import annotations

import math

import pytest

from regard.evaluation.agreement import jensen_shannon, kendall, spearman


def test_kendall_equals_hand_computations():
    # Of the six pairs, (1, 2) and (3, 4) are discordant: (4 - 2) / 6.
    assert kendall([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(2 / 6)
    assert kendall([1, 2, 3], [3, 2, 1]) == -1 and kendall([0.1, 0.2, 5], [1, 2, 3]) == 1
    # One tie in each: concordant 1, discordant 3, and 6 - 1 untied pairs in each.
    assert kendall([1, 1, 2, 3], [1, 2, 2, 0]) == pytest.approx((1 - 3) / 5)
    assert math.isnan(kendall([1, 1, 1], [1, 2, 3])) and math.isnan(kendall([1], [1]))


def test_spearman_averages_the_ranks_of_ties():
    assert spearman([10, 20, 30], [1, 5, 2]) == pytest.approx(0.5)  # 1 - 6 * 2 / (3 * 8)
    # The correlation of the ranks 1.5, 1.5, 3 and 1, 2, 3.
    assert spearman([4, 4, 9], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert math.isnan(spearman([2, 2], [1, 3]))


def test_jensen_shannon_is_a_distance():
    p, q, r = [0.5, 0.5, 0.0], [0.1, 0.6, 0.3], [0.0, 0.2, 0.8]
    assert jensen_shannon(p, q) == jensen_shannon(q, p) and jensen_shannon(q, q) == 0
    assert jensen_shannon(p, r) <= jensen_shannon(p, q) + jensen_shannon(q, r)
    # m = (0.75, 0.25): half of log2(1 / 0.75) and half of 0.5 log2(0.5 / 0.75) + 0.5 log2(0.5 / 0.25).
    by_hand = 0.5 * math.log2(1 / 0.75) + 0.5 * (0.5 * math.log2(0.5 / 0.75) + 0.5)
    assert jensen_shannon([1, 0], [1, 1]) == pytest.approx(math.sqrt(by_hand))
    assert math.isnan(jensen_shannon([0, 0], [1, 0]))
