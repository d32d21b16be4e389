"""AttentionLayer in four steps, each compared with the previous one.

A learned score with one query; a scaled dot product; many queries; separate keys and values.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import regard
from tests.making import randn

D, N = 4, 6
LOOK = regard.Look(weights=True)


def set_identity(layer: nn.Linear, scale: float = 1.0) -> None:
    nn.init.eye_(layer.weight)
    layer.weight.data *= scale


def test_step_1_one_query_with_a_learned_score():
    """e_i = f_att(q, X_i), a = softmax(e), y = sum_i a_i X_i"""
    layer, query, inputs = regard.AttentionLayer(3, D, score="additive").double(), randn(3), randn(N, D)
    score = layer.score
    hidden = [torch.tanh(query @ score.query_weight + x @ score.key_weight) for x in inputs]
    e = [(score.vector @ each).item() for each in hidden]
    a = [math.exp(each) / sum(map(math.exp, e)) for each in e]
    output = layer(query, inputs).output
    assert output.shape == (D,)
    torch.testing.assert_close(output, sum(weight * x for weight, x in zip(a, inputs, strict=True)))


def test_step_2_scaled_dot_equals_general_with_identity_weights():
    learned = regard.AttentionLayer(D, D, score="general").double()
    scaled, plain = (regard.AttentionLayer(D, D, score=name) for name in ("scaled_dot", "dot"))
    query, inputs = randn(D), randn(N, D)
    learned.score.weight.data = torch.eye(D).double() / math.sqrt(D)
    torch.testing.assert_close(scaled(query, inputs).output, learned(query, inputs).output)
    torch.testing.assert_close(scaled(query, inputs).output, plain(query / math.sqrt(D), inputs).output)


def test_step_2_scaling_keeps_the_entropy_of_weights_high():
    """Without 1 / sqrt(D) and for large D, one key gets almost all the weight, the others no gradient."""
    queries, inputs, look = torch.randn(100, 512), torch.randn(N, 512), regard.Look(entropy=True)
    plain, scaled = (
        regard.AttentionLayer(512, 512, score=name)(queries, inputs, look=look).entropy.mean()
        for name in ("dot", "scaled_dot")
    )
    assert plain < 0.2 < 1.0 < scaled


@pytest.mark.parametrize("score", regard.SCORES)
def test_step_3_many_queries_equal_single_queries(score: str):
    layer = regard.AttentionLayer(D, D, score=score).double()
    queries, inputs = randn(2, 3, D), randn(2, N, D)
    together = layer(queries, inputs, look=LOOK)
    assert together.output.shape == (2, 3, D) and together.weights.shape == (2, 3, N)
    for t in range(3):
        torch.testing.assert_close(layer(queries[:, t], inputs).output, together.output[:, t])
        for b in range(2):
            torch.testing.assert_close(layer(queries[b, t], inputs[b]).output, together.output[b, t])


def test_step_4_identity_projections_equal_step_3():
    before = regard.AttentionLayer(D, D)
    after = regard.AttentionLayer(D, D, key_size=D, value_size=D).double()
    set_identity(after.key)
    set_identity(after.value)
    queries, inputs = randn(2, 3, D), randn(2, N, D)
    torch.testing.assert_close(after(queries, inputs).output, before(queries, inputs).output)
    set_identity(after.value, 2.0)
    torch.testing.assert_close(after(queries, inputs).output, 2 * before(queries, inputs).output)


def test_step_4_learned_keys_and_values():
    """K = X W_k, V = X W_v, y = softmax(Q K / sqrt(D)) V"""
    layer = regard.AttentionLayer(3, D, key_size=3, value_size=7).double()
    queries, inputs = randn(2, 5, 3), randn(2, N, D)
    keys, values = inputs @ layer.key.weight.T, inputs @ layer.value.weight.T
    weights = torch.softmax(queries @ keys.mT / math.sqrt(3), -1)
    seen = layer(queries, inputs, look=LOOK)
    torch.testing.assert_close(seen.weights, weights.detach())
    torch.testing.assert_close(seen.output, weights @ values)


def test_one_query_per_sequence_gives_results_without_query_dimension():
    layer, query, inputs = regard.AttentionLayer(D, D), randn(2, D), randn(2, N, D)
    seen = layer(query, inputs, look=regard.Look(weights=True, alignment=True, mass=True))
    assert seen.output.shape == (2, D) and seen.mass.shape == (2, N)
    assert seen.weights.shape == (2, N) and seen.lse.shape == seen.alignment.shape == (2,)


def test_mask_and_site_are_passed_to_attention():
    layer, query, inputs = regard.AttentionLayer(D, D), randn(2, 1, D), randn(2, N, D)
    with regard.record() as seen:
        output = layer(query, inputs, mask=regard.padding(torch.tensor([N, 1]))).output
    torch.testing.assert_close(output[1, 0], inputs[1, 0])
    assert (seen["attention_layer"][0].weights[1, :, 1:] == 0).all()
