"""Vaswani et al. 2017, Attention is all you need."""

from __future__ import annotations

from math import cos, exp, sin, sqrt

import pytest
import torch

import regard


def test_scaled_dot_product_attention_in_numbers():
    """Attention(Q, K, V) = softmax(Q K / sqrt(d_k)) V (eq. 1)"""
    query, key = [[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0, 5.0], [0.0, 2.0, 2.0, 0.0]]
    value = [[10.0], [20.0]]
    # Q K = ((2, 0), (0, 4)), over sqrt(4) = ((1, 0), (0, 2))
    first, second = exp(1) / (exp(1) + 1), exp(2) / (exp(2) + 1)
    expected = [10 * first + 20 * (1 - first), 10 * (1 - second) + 20 * second]
    found = regard.attention(*(torch.tensor(each).double() for each in (query, key, value))).output
    assert found.flatten().tolist() == pytest.approx(expected)


def test_scaling_keeps_the_variance_of_scores_at_one():
    """q . k has variance d_k for independent entries of variance 1 (section 3.2.1, footnote 4)."""
    query, key = torch.randn(400, 256), torch.randn(400, 256)
    seen = regard.attention(query, key, look=regard.Look(weights=True))
    scores = seen.weights.log() + seen.lse.unsqueeze(-1)
    assert scores.var().item() == pytest.approx(1.0, abs=0.05)


def test_multi_head_attention_in_numbers():
    """head_h = Attention(x W^Q_h, x W^K_h, x W^V_h), concatenated and times W^O (section 3.2.2)"""
    layer = regard.MultiHead(width=2, heads=2, bias=False).double()
    q, k, v, o = (
        [[1.0, 1.0], [0.0, 2.0]],
        [[1.0, 0.0], [0.5, 0.5]],
        [[1.0, -1.0], [2.0, 0.0]],
        [[1.0, 1.0], [1.0, -1.0]],
    )
    for linear, weight in zip((layer.query, layer.key, layer.value, layer.output), (q, k, v, o), strict=True):
        linear.weight.data = torch.tensor(weight).double()
    x = [[1.0, 0.0], [2.0, 1.0]]

    def project(weight: list[list[float]], head: int) -> list[float]:
        return [weight[head][0] * a + weight[head][1] * b for a, b in x]

    heads = []
    for head in (0, 1):
        queries, keys, values = (project(weight, head) for weight in (q, k, v))
        read = []
        for query in queries:  # d_k = 1, so the root is 1
            powers = [exp(query * key) for key in keys]
            read.append(sum(p * value for p, value in zip(powers, values, strict=True)) / sum(powers))
        heads.append(read)
    expected = [[o[m][0] * heads[0][t] + o[m][1] * heads[1][t] for m in (0, 1)] for t in (0, 1)]
    found = layer(torch.tensor([x]).double()).output[0].tolist()
    assert found[0] == pytest.approx(expected[0]) and found[1] == pytest.approx(expected[1])


def test_the_decoder_does_not_see_what_comes_after():
    """Illegal connections are masked out, set to -infinity before the softmax (section 3.2.3)."""
    x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    output = regard.attention(x, x, mask=regard.causal()).output.flatten().tolist()
    two, three = [exp(2.0), exp(4.0)], [exp(3.0), exp(6.0), exp(9.0)]
    assert output == pytest.approx(
        [1.0, (two[0] + 2 * two[1]) / sum(two), (three[0] + 2 * three[1] + 3 * three[2]) / sum(three)]
    )


def test_positional_encoding_in_numbers():
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(the same) (section 3.5)"""
    found = regard.Sinusoidal(4)(torch.zeros(4, 4).double())[3].tolist()
    assert found == pytest.approx([sin(3), cos(3), sin(3 / sqrt(10000)), cos(3 / sqrt(10000))], abs=1e-6)
