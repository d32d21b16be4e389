"""MultiHead: equal to torch.nn.MultiheadAttention; decoding with a cache equals one call."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from tests.facts import facts
from tests.making import make_score, randn

ON_SCORES_OR_KEYS = [None, *(name for name, kind in regard.POSITIONS.items() if kind.acts != "embeddings")]


def same_weights(**options: Any) -> tuple[nn.MultiheadAttention, regard.MultiHead]:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, **options).double()
    for parameter in theirs.parameters():  # torch initialises biases to 0, which would hide a missing one
        nn.init.normal_(parameter, std=0.5)
    return theirs, regard.MultiHead.from_torch(theirs)


def matching(theirs: nn.MultiheadAttention, ours: regard.MultiHead) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of all parameters of both layers, in the same order."""
    linears = (ours.query, ours.key, ours.value)
    together = [torch.cat([linear.bias.grad for linear in linears])] if ours.query.bias is not None else []
    weights = [linear.weight.grad for linear in linears]
    if theirs.in_proj_weight is not None:
        weights, split = [torch.cat(weights)], [theirs.in_proj_weight]
    else:
        split = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    biases = [theirs.in_proj_bias] if together else []
    return [each.grad for each in (*split, *biases, theirs.out_proj.weight)], [
        *weights,
        *together,
        ours.output.weight.grad,
    ]


@pytest.mark.parametrize(
    ("options", "kind", "masked"),
    [
        ({}, "self", None),
        ({}, "self", "causal"),
        ({"bias": False}, "self", "padding"),
        ({}, "cross", "both"),
        ({"kdim": 5, "vdim": 7}, "cross", None),
        ({"kdim": 5, "vdim": 7, "bias": False}, "cross", "padding"),
        ({"vdim": 7}, "cross", "causal"),
    ],
)
def test_equal_to_torch(options: dict[str, Any], kind: str, masked: str | None):
    theirs, ours = same_weights(**options)
    query = randn(2, 4, 8)
    key = query if kind == "self" else randn(2, 6, options.get("kdim", 8))
    value = query if kind == "self" else randn(2, 6, options.get("vdim", 8))
    lengths, keys = torch.tensor([key.shape[1], 2]), key.shape[1]
    their_masks: dict[str, Any] = {}
    mask = regard.Mask()
    if masked in ("causal", "both"):
        mask, their_masks["attn_mask"] = mask & regard.causal(), torch.ones(4, keys).triu(1).bool()
    if masked in ("padding", "both"):
        their_masks["key_padding_mask"] = torch.arange(keys) >= lengths[:, None]
        mask = mask & regard.padding(lengths)
    expected, weights = theirs(query, key, value, average_attn_weights=False, **their_masks)
    seen = ours(query, key, value, mask=mask, look=regard.Look(weights=True))
    torch.testing.assert_close(seen.output, expected)
    torch.testing.assert_close(seen.weights, weights.detach())
    inputs = [query] if kind == "self" else [query, key, value]
    slope = torch.randn_like(expected)
    gradients = torch.autograd.grad(seen.output, [*inputs, *ours.parameters()], slope, retain_graph=True)
    torch.testing.assert_close(
        list(gradients[: len(inputs)]), list(torch.autograd.grad(expected, inputs, slope, retain_graph=True))
    )
    seen.output.backward(slope)
    expected.backward(slope)
    torch.testing.assert_close(*matching(theirs, ours))


def test_fully_masked_row_gives_zeros_where_torch_gives_nan():
    theirs, ours = same_weights()
    x, mask = randn(1, 3, 8), torch.tensor([[True, False, False], [False] * 3, [True] * 3])
    output, weights = theirs(x, x, x, attn_mask=~mask, need_weights=True)
    assert weights[0, 1].isnan().all() and output[0, 1].isnan().all()
    seen = ours(x, mask=mask, look=regard.Look(weights=True))
    assert (seen.weights[0, :, 1] == 0).all() and torch.equal(seen.output[0, 1], ours.output.bias)
    torch.testing.assert_close(seen.output[0, ::2], output[0, ::2])
    (gradient,) = torch.autograd.grad(seen.output.sum(), x)
    assert gradient.isfinite().all()


def test_from_torch_keeps_mode_dtype_and_dropout_and_rejects_unsupported_options():
    theirs = nn.MultiheadAttention(8, 2, dropout=0.3, dtype=torch.bfloat16).eval()
    ours = regard.MultiHead.from_torch(theirs)
    assert not ours.training and ours.dropout == 0.3 and ours.query.weight.dtype == torch.bfloat16
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        with pytest.raises(regard.ArgumentError, match=next(iter(options))):
            regard.MultiHead.from_torch(nn.MultiheadAttention(8, 2, **options))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}, {"vdim": 7, "bias": False}])
def test_from_torch_keeps_the_layout(batch_first: bool, options: dict[str, Any]):
    theirs = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours, batched = regard.MultiHead.from_torch(theirs), regard.MultiHead.from_torch(theirs, batch_first=True)
    sizes = (8, options.get("kdim", 8), options.get("vdim", 8))
    query, key, value = (randn(3, length, size) for length, size in zip((4, 6, 6), sizes, strict=True))
    first = [query, key, value]
    arguments = first if batch_first else [each.transpose(0, 1) for each in first]
    expected, weights = theirs(*arguments, average_attn_weights=False)
    seen = ours(*arguments, look=regard.Look(weights=True))
    torch.testing.assert_close(seen.output, expected)
    torch.testing.assert_close(seen.weights, weights.detach())
    torch.testing.assert_close(batched(*first).output, expected if batch_first else expected.transpose(0, 1))
    alone = [each[0] for each in first]
    torch.testing.assert_close(ours(*alone).output, theirs(*alone)[0])
    assert ours.batch_first == batch_first and ("batch_first=False" in repr(ours)) == (not batch_first)


def test_cache_equals_one_call_with_batch_second():
    layer = regard.MultiHead(8, 2, position="rotary", batch_first=False).double()
    x, memory, steps = randn(5, 3, 8), None, []
    for at in range(5):
        memory = layer.remember(x[at : at + 1], past=memory)
        steps.append(layer(x[at : at + 1], memory).output)
    torch.testing.assert_close(torch.cat(steps), layer(x, mask=regard.causal()).output)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda x: regard.MultiHead(embed_dim=8, num_heads=2), ("width=", "heads=")),
        (lambda x: regard.MultiHead(8, 2, kdim=4, vdim=4), ("key_width=", "value_width=")),
        (lambda x: regard.MultiHead(8, 2)(x, key_padding_mask=x), ("mask=padding(",)),
        (lambda x: regard.MultiHead(8, 2)(x, need_weights=True), ("look=Look(weights=True)",)),
        (lambda x: regard.MultiHead(8, 2)(x, average_attn_weights=False), ("look=Look(weights=True)",)),
        (lambda x: regard.MultiHead(8, 2)(x, is_causal=True), ("mask=causal()",)),
        (lambda x: regard.attention(x, x, x, attn_mask=x), ("mask=", "bias=")),
        (lambda x: regard.attention(x, x, x, is_causal=True, dropout_p=0.1), ("causal()", "dropout=")),
        (lambda x: regard.AttentionLayer(8, 8)(x, x, key_padding_mask=x), ("mask=padding(",)),
        (lambda x: regard.explain(x, x, attn_mask=x), ("mask=",)),
        (lambda x: regard.attention(x, x, x, num_heads=2), ("num_heads write nothing", "(B, H, T, D)")),
        (lambda x: regard.explain(x, x, x, kdim=2), ("kdim write nothing", "width")),
    ],
)
def test_torch_keywords_raise_an_error_that_names_ours(call: Any, names: tuple[str, ...]):
    with pytest.raises(regard.ArgumentError) as error:
        call(torch.ones(1, 3, 8))
    assert all(each in str(error.value) for each in names)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: regard.attention(x, x, maks=None),
        lambda x: regard.explain(x, x, maks=None),
        lambda x: regard.attention(x, x, maks=None, attn_mask=None),
        lambda x: regard.MultiHead(8, 2, maks=None),
        lambda x: regard.MultiHead(8, 2)(x, maks=None),
    ],
)
def test_other_unknown_keywords_raise_type_error(call: Any):
    with pytest.raises(TypeError, match="maks") as error:
        call(torch.ones(1, 3, 8))
    assert isinstance(error.value, regard.UnknownName)


def run_with_cache(layer: regard.MultiHead, x: Tensor, size: int) -> Tensor:
    """Run the layer with a cache, `size` tokens at a time."""
    memory, outputs = None, []
    for at in range(0, x.shape[1], size):
        piece = x[:, at : at + size]
        memory = layer.remember(piece, past=memory)
        outputs.append(layer(piece, memory, mask=regard.causal(), start=at).output)
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("position", ON_SCORES_OR_KEYS)
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(2, 2, 1), (4, 2, 1), (4, 1, 3)])
def test_cache_equals_one_call(position: str | None, heads: int, key_heads: int, size: int):
    layer = regard.MultiHead(16, heads, key_heads=key_heads, position=position).double()
    x = randn(2, 7, 16)
    whole = layer(x, mask=regard.causal()).output
    torch.testing.assert_close(run_with_cache(layer, x, size), whole)


@pytest.mark.parametrize("score", regard.SCORES)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_cache_equals_one_call_for_every_score(score: str, key_heads: int):
    layer = regard.MultiHead(16, 4, key_heads=key_heads, score=score).double()
    x = randn(2, 5, 16)
    torch.testing.assert_close(run_with_cache(layer, x, 2), layer(x, mask=regard.causal()).output)
    assert layer.score is not None and isinstance(layer.score, regard.SCORES[score])
    own = make_score(score, 4, 4)
    assert regard.MultiHead(16, 4, score=own).score is own


@pytest.mark.parametrize("position", ON_SCORES_OR_KEYS)
def test_output_depends_on_positions(position: str | None):
    layer, x = regard.MultiHead(8, 2, position=position).double(), randn(1, 5, 8)
    turned = torch.tensor([1, 0, 2, 3, 4])
    same = torch.allclose(layer(x[:, turned]).output[:, 4], layer(x).output[:, 4], atol=1e-9)
    assert same == (position is None)


def test_cross_attention_with_a_memory_equals_one_call():
    layer = regard.MultiHead(8, 2, key_width=6, value_width=5).double()
    query, key, value = randn(2, 3, 8), randn(2, 4, 6), randn(2, 4, 5)
    memory = layer.remember(key, value)
    assert memory.key.shape == (2, 2, 4, 4)
    whole = layer(query, key, value, mask=regard.padding(torch.tensor([4, 2]))).output
    steps = [
        layer(query[:, t : t + 1], memory, mask=regard.padding(torch.tensor([4, 2])), start=t).output
        for t in range(3)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_grouped_heads_equal_repeated_heads():
    grouped, plain = (regard.MultiHead(8, 4, key_heads=heads).double() for heads in (2, 4))
    state, x = grouped.state_dict(), randn(2, 5, 8)
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        state[name] = state[name].unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1)
    plain.load_state_dict(state)
    torch.testing.assert_close(grouped(x).output, plain(x).output)


def test_dropout_only_in_training_mode():
    layer, x = regard.MultiHead(8, 2, dropout=0.5), torch.randn(1, 5, 8)
    assert not torch.equal(layer(x).output, layer(x).output)
    layer.eval()
    assert torch.equal(layer(x).output, layer(x).output)


@pytest.mark.parametrize("position", ON_SCORES_OR_KEYS)
def test_unbatched_input_gives_unbatched_output(position: str | None):
    layer, x = regard.MultiHead(8, 2, position=position).double(), randn(1, 5, 8)
    torch.testing.assert_close(layer(x[0]).output, layer(x).output[0])


def test_bias_with_a_position_bias_raises():
    layer, x, bias = regard.MultiHead(8, 2, position="alibi"), torch.randn(1, 5, 8), 9 * torch.randn(5, 5)
    with pytest.raises(regard.ArgumentError, match="bias"):
        layer(x, bias=bias)


def test_options_are_passed_to_attention():
    layer, x = regard.MultiHead(8, 2).double(), randn(1, 5, 8)
    seen = layer(x, select=regard.Best(), look=regard.Look(top=1), backend="reference")
    assert torch.equal(seen.chosen, seen.top.keys.squeeze(-1)) and seen.chosen.shape == (1, 2, 5)
    with pytest.raises(regard.BackendError):
        layer(x, select=regard.Best(), backend="blocked")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_from_torch_replaces_attention_in_torch_layers_without_masks(batch_first: bool, training: bool):
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": batch_first}
    x = torch.randn(3, 5, 8)
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, **options).train(training)
    decoder = torch.nn.TransformerDecoderLayer(8, 2, 16, **options).train(training)
    expected = encoder(x), decoder(x, x)
    for layer, names in ((encoder, ["self_attn"]), (decoder, ["self_attn", "multihead_attn"])):
        for name in names:
            setattr(layer, name, regard.MultiHead.from_torch(getattr(layer, name)))
    regard.name_sites(decoder)
    with torch.no_grad(), regard.record() as seen:
        torch.testing.assert_close((encoder(x), decoder(x, x)), expected, atol=1e-5, rtol=1e-5)
    assert list(seen) == ["multihead", "self_attn", "multihead_attn"]
    with pytest.raises(regard.ArgumentError, match=facts("attn_mask", "nn.TransformerEncoderLayer")):
        encoder(x, src_mask=torch.zeros(5 if batch_first else 3, 5 if batch_first else 3))


def test_defaults_of_torch_keywords_are_ignored():
    layer, x = regard.MultiHead(8, 2), torch.randn(1, 3, 8)
    expected = layer(x).output
    ignored = {"attn_mask": None, "key_padding_mask": None, "need_weights": False, "is_causal": False}
    torch.testing.assert_close(layer(x, **ignored, average_attn_weights=True).output, expected)
    torch.testing.assert_close(
        regard.attention(x, x, attn_mask=None, scale=None).output, regard.attention(x, x).output
    )


def test_hooks_and_parametrizations_of_the_projections_are_used():
    layer, x = regard.MultiHead(8, 2), torch.randn(1, 5, 8)
    plain = layer(x).output
    called = []
    layer.key.register_forward_hook(lambda *_: called.append("key"))
    assert torch.equal(layer(x).output, plain) and called == ["key"]
    torch.nn.utils.parametrizations.weight_norm(layer.value)
    torch.testing.assert_close(layer(x).output, plain)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_patched_forward_of_linear_layers_is_called(gradients: bool, monkeypatch: pytest.MonkeyPatch):
    """Profilers and counters of operations replace nn.Linear.forward."""
    layer, x, called = regard.MultiHead(8, 2).eval(), torch.randn(2, 5, 8), list[torch.nn.Module]()
    expected, original = layer(x, mask=regard.causal()).output, torch.nn.Linear.forward

    def counted(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        called.append(self)
        return original(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counted)
    every = [layer.query, layer.key, layer.value, layer.output]
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            assert torch.equal(layer(x, mask=regard.causal()).output, expected) and called == every
            called.clear()
            layer(x)
            assert called == every
            called.clear()
            layer(x, layer.remember(x))
            assert sorted(map(id, called)) == sorted(map(id, every))
            called.clear()


def test_weights_own_their_memory(tmp_path: Path):
    """An assigned state replaces the weights, and a weight can be freed, as FSDP does."""
    layer, other = regard.MultiHead(72, 2), regard.MultiHead(72, 2)
    layer.load_state_dict(other.state_dict(), assign=True)
    del other
    weights = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    assert not [each for each in weights if each.shape == (216, 72)]
    expected, kept = layer(torch.ones(1, 3, 72)).output, layer.key.weight.detach().clone()
    storage = layer.key.weight.untyped_storage()
    assert storage.nbytes() == layer.key.weight.nbytes
    storage.resize_(0)
    storage.resize_(kept.nbytes)
    with torch.no_grad():
        layer.key.weight.copy_(kept)
    assert torch.equal(layer(torch.ones(1, 3, 72)).output, expected)
    torch.save(layer, tmp_path / "layer.pt")
    loaded = torch.load(tmp_path / "layer.pt", weights_only=False)
    earlier = regard.MultiHead.__new__(regard.MultiHead)  # as pickled by an earlier version
    earlier.__setstate__({**layer.__dict__, "_joint": None, "_wholes": [], "_plans": {}})
    for each in (loaded, earlier):
        assert torch.equal(each(torch.ones(1, 3, 72)).output, expected)


def test_layers_without_parameters_of_their_own_and_other_modules_run():
    """DataParallel moves the parameters of its replicas to plain attributes."""
    layer, x = regard.MultiHead(32, 4).eval(), torch.randn(2, 5, 32)
    expected = layer(x).output
    replica = copy.copy(layer)
    replica._modules = {name: each._replicate_for_data_parallel() for name, each in layer._modules.items()}
    for name in ("query", "key", "value", "output"):
        of_layer = getattr(layer, name)
        replica._modules[name].weight, replica._modules[name].bias = of_layer.weight * 1, of_layer.bias * 1
    torch.testing.assert_close(replica(x).output, expected)
    layer.query = torch.nn.Sequential(layer.query, torch.nn.Identity())
    torch.testing.assert_close(layer(x).output, expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_nested_tensor_is_refused_with_and_without_gradients(gradients: bool):
    nested = torch.nested.nested_tensor([torch.randn(3, 64), torch.randn(5, 64)], layout=torch.jagged)
    with torch.set_grad_enabled(gradients), pytest.raises(regard.ArgumentError, match="nested"):
        regard.MultiHead(64, 4)(nested)
