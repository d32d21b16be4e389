"""watch(): PyTorch's own attention layers give the same outputs, and their attention is recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import regard

LOOK = regard.Look(weights=True, entropy=True)


def masks(name: str) -> dict[str, Any]:
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    added = torch.randn(2 * 2, 5, 5)
    return {
        "none": {},
        "causal": {"attn_mask": causal},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
        "float": {"attn_mask": added},
        "float both": {
            "attn_mask": torch.zeros(5, 5).masked_fill(causal, -torch.inf),
            "key_padding_mask": torch.zeros(2, 5).masked_fill(padding, -torch.inf),
        },
    }[name]


@pytest.mark.parametrize("name", ["none", "causal", "padding", "both", "float", "float both"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_gives_the_same_output_and_weights(name: str, batch_first: bool):
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    x, options = torch.randn(2, 5, 8), masks(name)
    x = x if batch_first else x.transpose(0, 1)
    for average in (True, False):
        expected = layer(x, x, x, average_attn_weights=average, **options)
        with regard.watch(layer), regard.record(LOOK) as seen:
            ours = layer(x, x, x, average_attn_weights=average, **options)
        torch.testing.assert_close(ours, expected)
    (attended,) = seen["attention"]
    torch.testing.assert_close(attended.weights, expected[1])
    assert seen.roles["attention"].kind == "self"


def test_cross_attention_with_other_widths_and_without_a_batch():
    layer = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, bias=False)
    query, key, value = torch.randn(3, 8), torch.randn(5, 6), torch.randn(5, 4)
    expected = layer(query, key, value)
    with regard.watch(layer), regard.record(LOOK) as seen:
        torch.testing.assert_close(layer(query, key, value), expected)
    assert seen.roles["attention"].kind == "cross" and seen["attention"][0].weights.shape == (1, 2, 3, 5)
    hidden = {"key_padding_mask": torch.tensor([False, True, False, False, True])}
    expected = layer(query, key, value, **hidden)
    with regard.watch(layer), regard.record(LOOK):
        torch.testing.assert_close(layer(query, key, value, **hidden), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # raised by PyTorch's fast path
@pytest.mark.parametrize("padded", [False, True])
def test_a_transformer_encoder_is_recorded_instead_of_its_fast_path(padded: bool):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    padding = masks("padding")["key_padding_mask"] if padded else None
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        with regard.watch(encoder), regard.record(LOOK) as seen:
            ours = encoder(x, src_key_padding_mask=padding)
        again = encoder(x, src_key_padding_mask=padding)
    shown = torch.ones(2, 5, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(ours[shown], expected[shown])
    assert torch.equal(again, expected)  # PyTorch's layers are as before
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all("forward" not in vars(module) for module in encoder.modules())
    if padded:
        assert (seen["layers.1.self_attn"][0].weights[1, :, :, 3:] == 0).all()


def test_a_transformer_has_self_and_cross_attention_and_can_be_changed():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    source, target = torch.randn(1, 4, 8), torch.randn(1, 3, 8)
    with torch.no_grad(), regard.watch(model):
        plain = model(source, target)
        with regard.record(LOOK) as seen:
            torch.testing.assert_close(model(source, target), plain)
        with regard.intervene(cut=(1, 2), at="cross"), regard.record(LOOK, at="cross") as cut:
            changed = model(source, target)
    roles = {site: seen.roles[site] for site in seen}
    assert {site: role.kind for site, role in roles.items()} == {
        "encoder.layers.0.self_attn": "self",
        "decoder.layers.0.self_attn": "self",
        "decoder.layers.0.multihead_attn": "cross",
    }
    assert roles["decoder.layers.0.self_attn"].rows == "target"
    assert not torch.allclose(changed[:, 1], plain[:, 1])
    torch.testing.assert_close(changed[:, [0, 2]], plain[:, [0, 2]])
    assert (cut["decoder.layers.0.multihead_attn"][0].weights[0, :, 1, 2] == 0).all()


def test_gradients_are_those_of_torch():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    layer(x, x, x)[0].square().sum().backward()
    expected = [each.grad.clone() for each in layer.parameters()]
    layer.zero_grad()
    with regard.watch(layer), regard.record(LOOK):
        layer(x, x, x)[0].square().sum().backward()
    torch.testing.assert_close([each.grad for each in layer.parameters()], expected, rtol=1e-4, atol=1e-5)


def test_modules_that_cannot_be_watched_are_refused():
    with pytest.raises(regard.ArgumentError, match="str"), regard.watch("model"):  # type: ignore[type-var]
        pass
    with pytest.raises(regard.ArgumentError, match="MultiheadAttention"), regard.watch(nn.Linear(2, 2)):
        pass
    layer = nn.MultiheadAttention(8, 2, add_zero_attn=True)
    with pytest.raises(regard.ArgumentError, match="add_zero_attn"), regard.watch(layer):
        pass
    layer = nn.MultiheadAttention(8, 2)
    with regard.watch(layer), pytest.raises(regard.ArgumentError, match="already"), regard.watch(layer):
        pass
