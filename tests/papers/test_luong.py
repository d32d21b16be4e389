"""Luong, Pham and Manning 2015, Effective approaches to attention-based neural machine translation."""

from __future__ import annotations

from math import exp, tanh

import pytest
import torch

import regard

TARGET = [1.0, 2.0]  # h_t
SOURCE = [[0.5, 0.0], [0.0, 1.0], [-1.0, 0.5]]  # h_s
SEES = regard.Look(weights=True)


def softmax(scores: list[float]) -> list[float]:
    return [exp(each) / sum(map(exp, scores)) for each in scores]


def weights_of(score: regard.Score, **options: object) -> list[float]:
    query, key = torch.tensor([TARGET]).double(), torch.tensor(SOURCE).double()
    return regard.attention(query, key, score=score, look=SEES, **options).weights.flatten().tolist()


def test_dot():
    # h_t . h_s = 1 x 0.5, 2 x 1, -1 + 2 x 0.5
    assert weights_of(regard.Dot()) == pytest.approx(softmax([0.5, 2.0, 0.0]))


def test_general():
    score = regard.General(2, 2).double()
    score.weight.data = torch.tensor([[1.0, -1.0], [0.0, 0.5]]).double()
    # h_t W = (1, -1 + 2 x 0.5) = (1, 0)
    assert weights_of(score) == pytest.approx(softmax([0.5, 0.0, -1.0]))


def test_concat():
    score = regard.Concat(2, 2, hidden=1).double()
    score.weight.data, score.vector.data = (
        torch.tensor([[1.0], [0.5], [2.0], [-1.0]]).double(),
        torch.tensor([3.0]).double(),
    )
    # W [h_t; h_s] = 1 + 0.5 x 2 + 2 h_s1 - h_s2
    expected = [3 * tanh(2 + 2 * s[0] - s[1]) for s in SOURCE]
    assert weights_of(score) == pytest.approx(softmax(expected))


def test_location():
    score = regard.Location(2, max_length=4).double()
    score.weight.data = torch.tensor([[1.0, 0.0, -1.0, 5.0], [0.5, 0.25, 0.0, 5.0]]).double()
    # W h_t = (1 + 0.5 x 2, 0.25 x 2, -1), and the fourth place is past the end of this sentence
    assert weights_of(score) == pytest.approx(softmax([2.0, 0.5, -1.0]))


def test_context_is_the_weighted_average():
    query, key = torch.tensor([TARGET]).double(), torch.tensor(SOURCE).double()
    a = softmax([0.5, 2.0, 0.0])
    expected = [sum(weight * s[d] for weight, s in zip(a, SOURCE, strict=True)) for d in (0, 1)]
    assert regard.attention(query, key, score=regard.Dot()).output.flatten().tolist() == pytest.approx(
        expected
    )


def test_local_m_is_a_window_around_the_step():
    """p_t = t, and only [p_t - D, p_t + D] is looked at (section 3.2)."""
    assert weights_of(regard.Dot(), mask=regard.window(1, 1)) == pytest.approx([*softmax([0.5, 2.0]), 0.0])
    assert weights_of(regard.Dot(), mask=regard.window(1, 1), start=2) == pytest.approx(
        [0.0, *softmax([2.0, 0.0])]
    )


def test_local_p_multiplies_a_gaussian():
    """a_t(s) = align(h_t, h_s) exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D / 2 (eq. 10)"""
    select = regard.LocalP(centre=torch.tensor([0.5]).double(), width=1)
    near = softmax([0.5, 2.0])  # |s - 0.5| <= 1 leaves s = 0 and 1, both 0.5 away; sigma = 0.5
    expected = [near[0] * exp(-0.5), near[1] * exp(-0.5), 0.0]
    assert weights_of(regard.Dot(), select=select) == pytest.approx(expected)
    assert sum(expected) == pytest.approx(exp(-0.5))  # less than 1, as the paper has it
