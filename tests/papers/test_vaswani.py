"""Vaswani et al. 2017, Attention is all you need."""

from __future__ import annotations

from math import cos, exp, sin, sqrt

import pytest
import torch
from torch import nn

import regard
from regard.data.batch import Batch
from regard.layers import FeedForward, MultiHead
from regard.models import Size, Transformer


def test_scaled_dot_product_attention():
    """Attention(Q, K, V) = softmax(Q K / sqrt(d_k)) V (eq. 1)"""
    query, key = [[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0, 5.0], [0.0, 2.0, 2.0, 0.0]]
    value = [[10.0], [20.0]]
    # Q K = ((2, 0), (0, 4)), over sqrt(4) = ((1, 0), (0, 2))
    first, second = exp(1) / (exp(1) + 1), exp(2) / (exp(2) + 1)
    expected = [10 * first + 20 * (1 - first), 10 * (1 - second) + 20 * second]
    output = regard.attention(*(torch.tensor(each).double() for each in (query, key, value))).output
    assert output.flatten().tolist() == pytest.approx(expected)


def test_scaling_keeps_the_variance_of_scores_at_one():
    """q . k has variance d_k for independent entries of variance 1 (section 3.2.1, footnote 4)."""
    query, key = torch.randn(400, 256), torch.randn(400, 256)
    seen = regard.attention(query, key, look=regard.Look(weights=True))
    scores = seen.weights.log() + seen.lse.unsqueeze(-1)
    assert scores.var().item() == pytest.approx(1.0, abs=0.05)


def test_multi_head_attention():
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
        outputs = []
        for query in queries:  # d_k = 1, so sqrt(d_k) = 1
            powers = [exp(query * key) for key in keys]
            outputs.append(sum(p * value for p, value in zip(powers, values, strict=True)) / sum(powers))
        heads.append(outputs)
    expected = [[o[m][0] * heads[0][t] + o[m][1] * heads[1][t] for m in (0, 1)] for t in (0, 1)]
    output = layer(torch.tensor([x]).double()).output[0].tolist()
    assert output[0] == pytest.approx(expected[0]) and output[1] == pytest.approx(expected[1])


def test_causal_mask():
    """Illegal connections are masked out, set to -infinity before the softmax (section 3.2.3)."""
    x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    output = regard.attention(x, x, mask=regard.causal()).output.flatten().tolist()
    two, three = [exp(2.0), exp(4.0)], [exp(3.0), exp(6.0), exp(9.0)]
    assert output == pytest.approx(
        [1.0, (two[0] + 2 * two[1]) / sum(two), (three[0] + 2 * three[1] + 3 * three[2]) / sum(three)]
    )


def test_positional_encoding():
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(the same) (section 3.5)"""
    output = regard.Sinusoidal(4)(torch.zeros(4, 4).double())[3].tolist()
    assert output == pytest.approx([sin(3), cos(3), sin(3 / sqrt(10000)), cos(3 / sqrt(10000))], abs=1e-6)


def test_feed_forward_equals_two_convolutions_of_width_1():
    """Section 3.3: "Another way of describing this is as two convolutions with kernel size 1"."""
    layer, x = FeedForward(width=6, inner=10).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    first, second = nn.Conv1d(6, 10, 1).double(), nn.Conv1d(10, 6, 1).double()
    for conv, linear in ((first, layer.inner), (second, layer.outer)):
        conv.weight.data, conv.bias.data = linear.weight.data[..., None], linear.bias.data
    assert torch.allclose(layer(x), second(first(x.mT).relu()).mT, rtol=0, atol=1e-12)


def test_swiglu():
    """Shazeer 2020, eq. 6: (silu(x W) * x V) W_2, without biases."""
    layer = FeedForward(width=1, inner=1, activation="swiglu").double()
    for linear, number in ((layer.inner, 2.0), (layer.gate, 3.0), (layer.outer, 5.0)):
        assert linear.bias is None
        linear.weight.data.fill_(number)
    x = 0.5
    silu = 2 * x / (1 + exp(-2 * x))
    assert layer(torch.tensor([x]).double()).item() == pytest.approx(silu * 3 * x * 5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_model_equals_torch_transformer_layers(norm: str, activation: str):
    size = Size(width=8, heads=2, inner=16, layers=2)
    ours = Transformer(9, 9, size, norm=norm, activation=activation, dropout=0.0).double().eval()
    options = {"dim_feedforward": 16, "dropout": 0.0, "activation": activation, "batch_first": True}
    options |= {"norm_first": norm == "pre", "dtype": torch.float64}
    encoder = [nn.TransformerEncoderLayer(8, 2, **options).eval() for _ in range(2)]
    decoder = [nn.TransformerDecoderLayer(8, 2, **options).eval() for _ in range(2)]
    for own, theirs in zip([*ours.encoder, *ours.decoder], [*encoder, *decoder], strict=True):
        own.itself = with_site(MultiHead.from_torch(theirs.self_attn), own.itself.site)
        if own.cross is not None:
            own.cross = with_site(MultiHead.from_torch(theirs.multihead_attn), own.cross.site)
        own.feedforward.inner, own.feedforward.outer = theirs.linear1, theirs.linear2
    batch = Batch.collate([[4, 5, 6], [7]], [[4, 5], [8, 7, 6]])
    hidden = torch.arange(4) >= batch.source_lengths[:, None]
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    positions = regard.Sinusoidal(8)
    x = positions(ours.source(batch.source) * sqrt(8))
    for layer in encoder:
        x = layer(x, src_key_padding_mask=hidden)
    memory = ours.encoded(x)
    y = positions(ours.target(batch.inputs) * sqrt(8))
    for layer in decoder:
        y = layer(y, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    assert torch.allclose(ours(batch), ours.output(ours.decoded(y)), rtol=0, atol=1e-12)


def test_inner_dropout_defaults_to_dropout():
    for option, expected in ((None, 0.3), (0.0, 0.0), (0.5, 0.5)):
        model = Transformer(9, 9, Size(8, 2, 16, 1), dropout=0.3, inner_dropout=option)
        for layer in (*model.encoder, *model.decoder):
            attentions = [each.dropout for each in (layer.itself, layer.cross) if each is not None]
            assert {*attentions, layer.feedforward.dropout.p} == {expected}
            assert layer.dropout.p == model.dropout.p == 0.3


def with_site(layer: MultiHead, site: str) -> MultiHead:
    layer.site = site
    return layer


def test_parameter_counts_of_table_3():
    counts = {"base": 65e6, "big": 213e6}
    for name, expected in counts.items():
        with torch.device("meta"):
            model = Transformer(37000, 37000, name, tie="all", norm="post")
        assert sum(each.numel() for each in model.parameters()) == pytest.approx(expected, rel=0.04)
