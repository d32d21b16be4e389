"""Shaw, Uszkoreit and Vaswani 2018, Self-attention with relative position representations."""

from __future__ import annotations

from math import exp, sqrt

import pytest
import torch

import regard

X = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
KEYS = [[0.5, 0.0], [0.0, 0.0], [0.0, -1.0]]  # w^K_-1, w^K_0, w^K_1: clipped at k = 1
VALUES = [[1.0, 0.0], [0.0, 0.0], [0.0, 10.0]]  # w^V_-1, w^V_0, w^V_1


def clip(distance: int) -> int:
    """clip(x, k) = max(-k, min(k, x)), as an index into the tables."""
    return max(-1, min(1, distance)) + 1


def by_hand(i: int, values: bool) -> list[float]:
    """e_ij = x_i . (x_j + a^K_ij) / sqrt(d) (eq. 4), z_i = sum_j alpha_ij (x_j + a^V_ij) (eq. 3)"""
    e = []
    for j, x in enumerate(X):
        key = [x[d] + KEYS[clip(j - i)][d] for d in (0, 1)]
        e.append((X[i][0] * key[0] + X[i][1] * key[1]) / sqrt(2))
    alpha = [exp(each) / sum(map(exp, e)) for each in e]
    added = [VALUES[clip(j - i)] if values else [0.0, 0.0] for j in range(3)]
    return [sum(alpha[j] * (X[j][d] + added[j][d]) for j in range(3)) for d in (0, 1)]


@pytest.fixture(params=[False, True], ids=["keys", "keys and values"])
def scheme(request: pytest.FixtureRequest) -> regard.Relative:
    scheme = regard.Relative(size=2, values=2 if request.param else 0, furthest=1).double()
    scheme.key_table.data = torch.tensor(KEYS).double()
    if request.param:
        scheme.value_table.data = torch.tensor(VALUES).double()
    return scheme


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_relative_positions(scheme: regard.Relative, backend: str):
    x = torch.tensor(X).double()
    output = regard.attention(x, x, bias=scheme, backend=backend).output.tolist()
    for i in range(3):
        assert output[i] == pytest.approx(by_hand(i, scheme.reads))


def test_decoding_step(scheme: regard.Relative):
    x = torch.tensor(X).double()
    for i in range(3):
        output = regard.attention(x[i : i + 1], x, bias=scheme, start=i).output.flatten().tolist()
        assert output == pytest.approx(by_hand(i, scheme.reads))


def test_score_of_one_pair(scheme: regard.Relative):
    # x_2 . (x_1 + w^K_-1) / sqrt(2) = (0.5 + 1) / sqrt(2): 0.5 from the distance, 1 from the content
    x = torch.tensor(X).double()
    hidden = torch.tensor([[False, True, False]])
    lse = regard.attention(x[2:], x, bias=scheme, start=2, mask=hidden).lse.item()
    assert lse == pytest.approx(1.5 / sqrt(2))
