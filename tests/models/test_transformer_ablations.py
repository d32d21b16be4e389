"""The option `without` of a Transformer: what a model without a part computes, and how it decodes."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import Batch
from regard.errors import UnknownName
from regard.fast.search.transformer_decoder import TransformerDecoder
from regard.models import build_model

SIZES = {"width": 8, "heads": 2, "inner": 12, "layers": 2, "dropout": 0.0}


def build(**options):
    torch.manual_seed(0)
    return build_model("transformer", 11, 11, **SIZES, **options).double().eval()


def batch() -> Batch:
    return Batch.collate([[4, 5, 6]], [[7, 8, 9]])


def test_without_causal_mask_the_first_step_sees_the_last_token():
    changed = Batch.collate([[4, 5, 6]], [[7, 8, 10]])
    for without, same in (((), True), ("causal-mask", False)):
        model = build(without=without)
        first, other = (model(each)[0, 0] for each in (batch(), changed))
        assert torch.equal(first, other) == same


def test_without_feed_forward_layer_only_attention_is_left():
    whole, without = build(), build(without="feed-forward")
    assert not [name for name, _ in without.named_parameters() if "feedforward" in name]
    assert [len(layer.norms) for layer in (*without.encoder, *without.decoder)] == [1, 1, 2, 2]
    for layer in (*whole.encoder, *whole.decoder):  # a feed-forward layer that returns 0
        torch.nn.init.zeros_(layer.feedforward.outer.weight)
        torch.nn.init.zeros_(layer.feedforward.outer.bias)
    without.load_state_dict(whole.state_dict(), strict=False)
    torch.testing.assert_close(without(batch()), whole(batch()))
    assert TransformerDecoder.reasons(without) and not TransformerDecoder.reasons(whole)


def test_without_projections_keys_and_values_are_the_inputs_and_are_not_trained():
    model = build(without=["projections"])
    layer = model.encoder[0].itself
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    memory = layer.remember(x)
    by_head = x.view(1, 5, 2, 4).transpose(1, 2)
    assert torch.equal(memory.key, by_head) and torch.equal(memory.value, by_head)
    model(batch()).sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not [name for name in trained if ".key." in name or ".value." in name]
    assert "encoder.0.itself.query.weight" in trained


def test_unknown_part_is_an_error_that_lists_the_parts():
    with pytest.raises(UnknownName, match="feed-forward"):
        build(without=["feedforward"])
