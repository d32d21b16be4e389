"""Bahdanau, Cho and Bengio 2014, Neural machine translation by jointly learning to align and translate."""

from __future__ import annotations

from math import exp, tanh

import pytest
import torch

import regard

STATES = [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, -1.0, 1.0]]  # h_1, h_2, h_3
W = [[0.5, -1.0], [1.0, 0.25]]  # (query, hidden)
U = [[1.0, 0.0], [-0.5, 0.5], [0.0, 2.0]]  # (key, hidden)
V = [1.5, -0.5]


@pytest.fixture
def score() -> regard.Additive:
    made = regard.Additive(query_size=2, key_size=3, hidden=2).double()
    made.query_weight.data, made.key_weight.data = torch.tensor(W).double(), torch.tensor(U).double()
    made.vector.data = torch.tensor(V).double()
    return made


def by_hand(s: list[float], states: list[list[float]]) -> tuple[list[float], list[float]]:
    """e_j = v . tanh(W s + U h_j) (appendix A.1.2), alpha = softmax(e) (eq. 6), c (eq. 5)"""
    ws = [s[0] * W[0][a] + s[1] * W[1][a] for a in (0, 1)]
    uh = [[h[0] * U[0][a] + h[1] * U[1][a] + h[2] * U[2][a] for a in (0, 1)] for h in states]
    e = [V[0] * tanh(ws[0] + u[0]) + V[1] * tanh(ws[1] + u[1]) for u in uh]
    alpha = [exp(each) / sum(map(exp, e)) for each in e]
    return alpha, [sum(a * h[d] for a, h in zip(alpha, states, strict=True)) for d in range(3)]


def test_every_decoding_step_over_one_memory(score: regard.Additive):
    memory = regard.prepare(torch.tensor([STATES]).double(), score=score)
    for s in ([1.0, -1.0], [0.0, 0.0], [-2.0, 0.5]):
        alpha, context = by_hand(s, STATES)
        seen = regard.attention(torch.tensor([[s]]).double(), memory, look=regard.Look(weights=True))
        assert seen.weights.flatten().tolist() == pytest.approx(alpha)
        assert seen.output.flatten().tolist() == pytest.approx(context)


def test_the_score_of_one_pair_in_numbers(score: regard.Additive):
    # W s = (-0.5, -1.25) and U h_1 = (1, -2), so e_11 = 1.5 tanh(0.5) - 0.5 tanh(-3.25)
    query, key = torch.tensor([[1.0, -1.0]]).double(), torch.tensor(STATES[:1]).double()
    lse = regard.attention(query, key, score=score).lse.item()
    assert lse == pytest.approx(1.5 * tanh(0.5) + 0.5 * tanh(3.25))


def test_a_shorter_sentence_does_not_see_its_padding(score: regard.Additive):
    batch = torch.tensor([STATES, [*STATES[:2], [9.0, 9.0, 9.0]]]).double()
    memory = regard.prepare(batch, score=score, mask=regard.padding(torch.tensor([3, 2])))
    output = regard.attention(torch.tensor([[[1.0, -1.0]]] * 2).double(), memory).output
    for found, states in zip(output, (STATES, STATES[:2]), strict=True):
        assert found.flatten().tolist() == pytest.approx(by_hand([1.0, -1.0], states)[1])
