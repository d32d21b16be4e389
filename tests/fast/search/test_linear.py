"""linear() computes functional.linear(), and a search uses it for large layers on a CPU."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.data.batch import Batch
from regard.decoding import Beam, Rules, search
from regard.decoding.beam import beam_search
from regard.errors import RegardWarning
from regard.fast.search import linear as module
from regard.fast.search import search_decoder, slot_search
from regard.fast.search.linear import linear
from regard.models import Model
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import Size, Transformer

WORDS = 2100


@torch.no_grad()
def test_same_as_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = torch.randn(520, 256), torch.randn(520)
    monkeypatch.setattr(module, "MANY_WEIGHTS", 1)
    for rows in (1, 2, 5, 80):
        compute = linear(weight, bias, rows)
        for x in (torch.randn(rows, 256), torch.randn(rows + 3, 300)[:, 20:276]):
            expected = functional.linear(x, weight, bias)
            torch.testing.assert_close(compute(x), expected, rtol=1e-4, atol=1e-4)
            with_relu = linear(weight, bias, rows, relu=True)(x)
            torch.testing.assert_close(with_relu, expected.relu(), rtol=1e-4, atol=1e-4)
    small = linear(weight[:8], None, 5, relu=True)
    assert torch.equal(small(x), functional.linear(x, weight[:8]).relu())


@torch.no_grad()
def test_weights_are_packed_only_where_it_is_faster() -> None:
    large, x = torch.randn(520, 256), torch.randn(5, 256)
    small = large[:8].contiguous()
    reorder = mock.Mock(wraps=torch.ops.mkldnn._reorder_linear_weight)
    with mock.patch.object(torch.ops.mkldnn, "_reorder_linear_weight", reorder):
        for weight, rows in ((small, 5), (large, 1), (large, 2), (large.double(), 5), (large.bfloat16(), 5)):
            linear(weight, None, rows)
        reorder.assert_not_called()
        with mock.patch.object(module, "_runs_onednn", return_value=False):
            assert torch.equal(linear(large, None, 5)(x), functional.linear(x, large))
        reorder.assert_not_called()
        linear(large, None, 5)
        assert reorder.call_count == module._has_onednn()


@pytest.mark.parametrize("kind", [nn.Linear, nn.LayerNorm])
def test_a_search_calls_a_forward_that_was_patched_in_its_class(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, called, forward = Transformer(9, 9, Size(16, 2, 16, 1)).eval(), list[nn.Module](), kind.forward

    def counted(self: nn.Module, *inputs: torch.Tensor) -> object:
        called.append(self)
        return forward(self, *inputs)

    assert not isinstance(search_decoder(model, Beam(2)), list)
    monkeypatch.setattr(kind, "forward", counted)
    search(model, Batch.collate([[4, 5]]), Beam(2, rules=Rules(maximum=2)), look=None)
    assert (model.output if kind is nn.Linear else model.decoded) in called


@torch.no_grad()
def test_int8_products_are_close() -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(520, 256), torch.randn(520), torch.randn(5, 256)
    expected = functional.linear(x, weight, bias)
    error = linear(weight, bias, 5, int8=True)(x) - expected
    rectified = linear(weight, bias, 5, int8=True, relu=True)(x)
    assert torch.equal(rectified, linear(weight, bias, 5, int8=True)(x).relu())
    assert 1e-4 < error.norm() / expected.norm() < 0.02


@pytest.mark.parametrize("name", ["transformer", "bahdanau"])
@torch.no_grad()
def test_search_with_packed_weights(name: str) -> None:
    torch.manual_seed(0)
    size = Size(width=64, heads=2, inner=64, layers=1)
    model: Model = Transformer(9, WORDS, size) if name == "transformer" else Bahdanau(9, WORDS, 128)
    for weight in model.parameters():
        weight.mul_(2.0)
    batch, how = Batch.collate([[4, 5, 6], [7]]), Beam(3, rules=Rules(maximum=6))
    result = slot_search(model.eval(), batch, how)
    expected = beam_search(copy.deepcopy(model).double(), batch, how)
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=1e-3)
    model.int8_steps = True  # as load(precision="int8") does
    scores = slot_search(model, batch, how).token_scores
    assert not torch.equal(scores, result.token_scores)
    assert (scores - result.token_scores)[:, 0, 0].abs().max() < 0.1
    with pytest.warns(RegardWarning, match="above 40"):
        search(model, batch, Beam(41, rules=Rules(maximum=2)), look=None)
    output_name = "output" if name == "transformer" else "readout.output"
    replaced = copy.deepcopy(model)
    parent, _, own = output_name.rpartition(".")
    setattr(replaced.get_submodule(parent), own, nn.Sequential(replaced.get_submodule(output_name)))
    with pytest.warns(RegardWarning, match="layers"):
        search(replaced, batch, how, look=None)
    model.int8_steps = False
    # Weights are read again by the next search.
    output = model.get_submodule(output_name)
    assert isinstance(output, nn.Linear)
    output.weight.zero_()
    output.bias.zero_()[9] = 50.0
    assert (slot_search(model, batch, how).tokens[..., 0] == 9).all()
    output.weight.data.normal_()  # which changes no version counter
    output.bias.data.zero_()
    result, expected = (run(model, batch, how) for run in (slot_search, beam_search))
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=1e-3)


@torch.no_grad()
def test_packed_weights_and_products_of_words_are_kept_until_a_weight_changes() -> None:
    torch.manual_seed(0)
    model = Bahdanau(9, WORDS, 128).eval()
    sources = [[4, 5, 6], [7], [8, 4], [5]]
    batch, how = Batch.collate(sources), Beam(4, rules=Rules(maximum=6))
    reorder = mock.Mock(wraps=torch.ops.mkldnn._reorder_linear_weight)
    with mock.patch.object(torch.ops.mkldnn, "_reorder_linear_weight", reorder):
        slot_search(model, batch, how)
        first = reorder.call_count
        slot_search(model, batch, how)
    assert (first > 0) == module._has_onednn()
    assert reorder.call_count == first
    for weight in (
        model.target.weight,
        model.cell.input.weight,
        model.cell.gate.weight,
        model.readout.pairs.bias,
    ):
        weight.data.add_(torch.randn_like(weight))  # which changes no version counter
        result, expected = (run(model, batch, how) for run in (slot_search, beam_search))
        assert torch.equal(result.tokens, expected.tokens)
        torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=1e-4, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_large_queries_and_keys_of_additive_attention(size: float) -> None:
    """Beyond some size, exponentials would overflow: 0 times infinity."""
    torch.manual_seed(0)
    model = Bahdanau(9, 30, 16).eval()
    for weight in (model.score.key_weight, model.score.query_weight):
        weight.mul_(size)
    batch, how = Batch.collate([[4, 5, 6], [7], [8, 4]]), Beam(3, rules=Rules(maximum=6))
    result, expected = slot_search(model, batch, how), beam_search(model.double(), batch, how)
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=1e-4, atol=1e-4)
