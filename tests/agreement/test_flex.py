"""flex on CPU: the compiled forward pass, for every kind of mask and bias; never selected by "auto" there."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

import regard
from regard.backends import flex
from regard.call import Call
from regard.masks.mask import as_mask

COMPILER = shutil.which("g++") or shutil.which("clang++")
CASES = {
    "plain": {},
    "causal padding": {"mask": regard.causal() & regard.padding(torch.tensor([20, 9]))},
    "window from 5": {"mask": regard.window(3, 2), "start": 5},
    "condition with alibi": {
        "mask": regard.where(lambda b, h, q, k: (q + k + h) % 3 > 0),
        "bias": regard.ALiBi(4),
    },
    "table with bias": {
        "mask": torch.ones(20, 20, dtype=torch.bool).tril(),
        "bias": torch.randn(1, 4, 1, 20),
    },
    "empty rows by bias": {"bias": torch.full((1, 1, 20, 20), -torch.inf).tril()},
    "empty rows": {"mask": regard.padding(torch.tensor([0, 20]))},
}


@pytest.mark.skipif(not COMPILER, reason="FlexAttention on CPU needs a C++ compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "condition with alibi" else pytest.mark.slow) for n in CASES]
)
def test_agrees_with_the_reference(name: str):
    query, key = torch.randn(2, 4, 20, 16), torch.randn(2, 2, 20, 16)
    ours = regard.attention(query, key, **CASES[name], backend="flex")
    exact = regard.attention(query, key, **CASES[name], backend="reference")
    torch.testing.assert_close(ours.output, exact.output)
    torch.testing.assert_close(ours.lse, exact.lse)


def assert_agrees(queries: int, keys: int, temperature: float, **options: Any) -> None:
    """Compare output and lse of compiled flex with the reference."""
    query, key = torch.randn(2, 4, queries, 16), torch.randn(2, 2, keys, 16)
    select = regard.Soft(temperature)
    ours = regard.attention(query, key, select=select, **options, backend="flex")
    exact = regard.attention(query, key, select=select, **options, backend="reference")
    torch.testing.assert_close(ours.output, exact.output)
    torch.testing.assert_close(ours.lse, exact.lse)


@pytest.mark.skipif(not COMPILER, reason="FlexAttention on CPU needs a C++ compiler")
def test_different_calls_in_one_process_beyond_the_recompile_limit():
    counters = torch._dynamo.utils.counters["stats"]
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        assert_agrees(20, 20, 1.0, bias=regard.ALiBi(4))
        before = counters["unique_graphs"]
        assert_agrees(20, 20, 0.7, bias=regard.ALiBi(4))
        assert_agrees(20, 33, 0.3, bias=torch.randn(1, 4, 1, 33))
        assert torch._dynamo.config.recompile_limit == 1
    assert counters["unique_graphs"] > before  # compiled, not run eagerly


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="FlexAttention on CPU needs a C++ compiler")
def test_many_different_calls_in_one_process():
    sizes, masks = [(20, 20), (31, 20), (33, 27), (1, 40)], [None, regard.window(3, 2), regard.window(5, 1)]
    for at, (queries, keys) in enumerate(sizes * 3):
        biases = [None, regard.ALiBi(4), torch.randn(1, 4, 1, keys), torch.randn(queries, keys)]
        mask, start = masks[at % 3], at % 5
        assert_agrees(queries, keys, 0.3 + 0.4 * at, bias=biases[(at + at // 4) % 4], mask=mask, start=start)


def test_double_backward_raises_our_error(monkeypatch: pytest.MonkeyPatch):
    def stand_in(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options["score_mod"] is not None
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=options["scale"])

    monkeypatch.setattr(flex, "_run_compiled", stand_in)  # on CPU, FlexAttention has no backward pass
    x, bias = torch.randn(1, 1, 5, 16, requires_grad=True), torch.zeros(1, 1, 5, 5, requires_grad=True)
    call = Call(x, x, x, "inner", 1.0, None, as_mask(None), bias, regard.Soft(), 0, 0.0)
    (slope,) = torch.autograd.grad(flex.run(call).output.square().sum(), x, create_graph=True)
    with pytest.raises(regard.BackendError, match="reference"):
        slope.square().sum().backward()
    assert not x._backward_hooks


class _Fused(torch.autograd.Function):
    """An operation with a backward pass that cannot be differentiated, as that of FlexAttention."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scores.softmax(-1))
        return scores.softmax(-1) @ value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, doutput: torch.Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        return weights * doutput.sum(-1, keepdim=True), None


def test_double_backward_through_the_parameters_of_a_bias_raises_our_error(monkeypatch: pytest.MonkeyPatch):
    def stand_in(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        head, row, j = torch.zeros(1, dtype=torch.long), torch.arange(5)[:, None], torch.arange(5)
        return _Fused.apply(options["score_mod"](query @ key.mT, None, head, row, j), value.detach())

    monkeypatch.setattr(flex, "_run_compiled", stand_in)
    x, bias = torch.randn(1, 1, 5, 16), regard.T5Bias(heads=1)
    call = Call(x, x, x, "inner", 1.0, None, as_mask(None), bias, regard.Soft(), 0, 0.0)
    loss = flex.run(call).output.square().sum()
    (once,) = torch.autograd.grad(loss, bias.table, retain_graph=True)
    assert once.abs().sum() > 0 and not once.requires_grad
    (slope,) = torch.autograd.grad(loss, bias.table, create_graph=True)
    assert torch.equal(slope, once)
    with pytest.raises(regard.BackendError, match="reference"):
        slope.square().sum().backward()
    assert not bias.table._backward_hooks


@pytest.mark.gpu
def test_double_backward_through_learned_biases_raises_our_error_on_a_gpu():
    x, bias = torch.randn(1, 2, 32, 16, device="cuda"), regard.T5Bias(heads=2).cuda()
    output = regard.attention(x, x, x, bias=bias, backend="flex").output
    (slope,) = torch.autograd.grad(output.square().sum(), bias.table, create_graph=True)
    with pytest.raises(regard.BackendError, match="reference"):
        slope.square().sum().backward()


@pytest.mark.parametrize("pairs", [1, 1 << 24])
@pytest.mark.parametrize("name", [*CASES, "documents", "causal documents"])
def test_blocks_agree_with_evaluating_every_pair(name: str, pairs: int, monkeypatch: pytest.MonkeyPatch):
    from torch.nn.attention.flex_attention import create_block_mask

    monkeypatch.setattr(flex, "REMEMBERED", 0)
    monkeypatch.setattr(flex, "BLOCK", 8)
    monkeypatch.setattr(flex, "PAIRS_AT_ONCE", pairs)
    ids = regard.documents(torch.arange(20).expand(2, -1) // 9)
    masks = {name: case.get("mask") for name, case in CASES.items()}
    mask = {**masks, "documents": ids, "causal documents": regard.causal() & ids}[name]
    x, start = torch.randn(2, 4, 20, 16), CASES.get(name, {}).get("start", 0)
    call = Call(x, x, x, "inner", 1.0, None, as_mask(mask), None, regard.Soft(), start, 0.0)

    ours = flex.seen_blocks(call)
    exact = create_block_mask(ours.mask_mod, 2, 4, 20, 20, device="cpu", BLOCK_SIZE=8)
    for part in ("kv", "full_kv", "q", "full_q"):
        mine, theirs = (getattr(each, f"{part}_num_blocks") for each in (ours, exact))
        assert torch.equal(mine.expand_as(theirs), theirs)
        mine, wanted = (getattr(each, f"{part}_indices") for each in (ours, exact))
        for found, correct, count in zip(
            mine.expand_as(wanted).flatten(0, -2), wanted.flatten(0, -2), theirs.flatten(), strict=True
        ):
            assert torch.equal(found[:count], correct[:count])


def test_masks_without_tensors_are_cached():
    x = torch.randn(2, 4, 20, 16)
    plain, padded = (
        regard.causal() & regard.window(3),
        regard.causal() & regard.padding(torch.tensor([20, 9])),
    )
    calls = [Call(x, x, x, "inner", 1.0, None, m, None, regard.Soft(), 0, 0.0) for m in (plain, padded)]
    with torch.inference_mode():
        first, other = map(flex.seen_blocks, calls)
    assert flex.seen_blocks(calls[0]) is first and not first.kv_indices.is_inference()
    assert flex.seen_blocks(calls[1]) is not other


def test_captured_calls_use_tables_from_before_the_capture(monkeypatch: pytest.MonkeyPatch):
    x = torch.randn(2, 4, 21, 16)
    masks = regard.window(4), regard.window(5)
    known, unknown = (Call(x, x, x, "inner", 1.0, None, mask, None, regard.Soft(), 0, 0.0) for mask in masks)
    monkeypatch.setattr(flex, "_kept", {})
    monkeypatch.setattr(flex, "_in_graphs", {})
    monkeypatch.setattr(flex, "KEPT", 1)
    first = flex.seen_blocks(known)
    monkeypatch.setattr(flex, "_capturing", lambda device: True)
    assert flex.seen_blocks(known) is first
    assert flex.seen_blocks(unknown) is not flex.seen_blocks(unknown)
    monkeypatch.setattr(flex, "_capturing", lambda device: False)
    flex.seen_blocks(unknown)  # removes the first from the cache, but not from that of graphs
    monkeypatch.setattr(flex, "_capturing", lambda device: True)
    assert len(flex._kept) == 1 and flex.seen_blocks(known) is first


def test_fake_tensors_are_not_cached():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    x = torch.randn(1, 1, 9, 16)
    with FakeTensorMode() as pretending:
        fake = pretending.from_tensor(x)
        call = Call(fake, fake, fake, "inner", 1.0, None, regard.window(5, 1), None, regard.Soft(), 0, 0.0)
        assert isinstance(flex.seen_blocks(call).kv_indices, FakeTensor)
    call = Call(x, x, x, "inner", 1.0, None, regard.window(5, 1), None, regard.Soft(), 0, 0.0)
    assert not isinstance(flex.seen_blocks(call).kv_indices, FakeTensor)


def test_unsorted_documents_have_no_hidden_or_full_blocks():
    ids = torch.tensor([[5, 1, 9, 1] * 64])
    x = torch.randn(1, 1, 256, 16)
    mask = regard.documents(ids)
    call = Call(x, x, x, "inner", 1.0, None, mask, None, regard.Soft(), 0, 0.0)
    blocks = flex.seen_blocks(call)
    assert blocks.kv_num_blocks.tolist() == [[[2, 2]]] and blocks.full_kv_num_blocks.tolist() == [[[0, 0]]]


def test_reasons_for_unsupported_calls():
    x = torch.randn(2, 4, 20, 16)
    assert "has no dropout" in regard.explain(x, x, dropout=0.1).refused["flex"]
    assert "computes no gradients on cpu" in regard.explain(x.clone().requires_grad_(), x).refused["flex"]
    assert regard.explain(x, x, mask=regard.where(lambda b, h, q, k: q > k)).backend != "flex"
