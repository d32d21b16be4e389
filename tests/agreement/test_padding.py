"""Padding on CUDA: key and value are neither copied nor read behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.backends import varlen

LENGTHS = {"ragged": [5, 1, 7], "a length of 0": [0, 7, 3], "one for all": [4], "full": [7, 7, 7]}


def emulated(
    query: Tensor, key: Tensor, value: Tensor, cum_q: Tensor, cum_k: Tensor, *rest: Any, scale: float
):
    """aten._flash_attention_forward with variable lengths, one sequence after another, in plain PyTorch."""
    max_q, max_k, dropout, is_causal, _ = rest
    assert dropout == 0.0 and not is_causal and cum_q.dtype == cum_k.dtype == torch.int32
    assert cum_q.diff().max() == max_q and cum_k.diff().min() >= 0 and cum_k.diff().max() <= max_k
    assert query.shape[0] == cum_q[-1] and key.shape[0] == value.shape[0] == cum_k[-1]
    outputs, all_lse = [], []
    for sequence in range(len(cum_q) - 1):
        q, k, v = (
            each[cum[sequence] : cum[sequence + 1]].transpose(0, 1)
            for each, cum in ((query, cum_q), (key, cum_k), (value, cum_k))
        )
        scores = q @ k.mT * scale
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
        all_lse.append(scores.logsumexp(-1) if k.shape[1] else torch.full(q.shape[:2], torch.inf))
    lse = torch.cat([each.to(query.dtype) for each in all_lse], 1)
    return torch.cat(outputs), lse.detach(), None, None, None


def tensors(layout: str, dtype: torch.dtype, device: str, width: int = 8) -> list[Tensor]:
    """Query, key and value (3, 2, T or S, D), as a linear layer returns them ("heads last") or contiguous."""
    made = [torch.randn(3, 2, length, width, dtype=dtype, device=device) for length in (4, 7, 7)]
    if layout == "heads last":
        made = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in made]
    return [each.requires_grad_() for each in made]


def poison(lengths: Tensor, *padded: Tensor) -> None:
    """Write NaN behind the padding."""
    hidden = torch.arange(7, device=lengths.device) >= lengths.expand(3)[:, None]
    for each in padded:
        each.data[hidden[:, None].expand(3, 2, 7)] = torch.nan


@pytest.mark.parametrize("layout", ["heads last", "heads first"])
@pytest.mark.parametrize("name", LENGTHS)
def test_sequences_and_layouts_are_passed_as_the_operator_expects(
    layout: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", emulated)
    query, key, value = leaves = tensors(layout, torch.float64, "cpu")
    lengths = torch.tensor(LENGTHS[name])
    poison(lengths, key, value)
    output, lse = varlen.attend_padded(query, key, value, lengths, 0.0, 0.5)
    exact = regard.attention(
        0.5 * query, key, value, score=regard.Dot(), mask=regard.padding(lengths), backend="reference"
    )
    torch.testing.assert_close(output, exact.output)
    torch.testing.assert_close(lse, exact.lse)
    found, wanted = (torch.autograd.grad(each.square().sum(), leaves) for each in (output, exact.output))
    torch.testing.assert_close(found, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["heads last", "heads first"])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("width", [8, 20, 64])
@pytest.mark.parametrize("backend", ["masked", "sdpa-flash"])
def test_padding_on_a_gpu(backend: str, layout: str, name: str, width: int, dtype: torch.dtype):
    query, key, value = leaves = tensors(layout, dtype, "cuda", width)
    lengths = torch.tensor(LENGTHS[name], device="cuda")
    mask = regard.padding(lengths)
    assert regard.explain(query, key, value, mask=mask).backend == "masked"
    poison(lengths, key, value)
    options = {"mask": mask, "backend": backend}
    seen = regard.attention(query, key, value, **options)
    looked = regard.attention(query, key, value, **options, look=regard.Look(entropy=True))
    assert torch.equal(seen.output, looked.output) and torch.equal(seen.lse, looked.lse)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    exact = regard.attention(*wide, mask=mask, backend="reference")
    budget = 4 * torch.finfo(dtype).eps
    found = [seen.output, seen.lse, *torch.autograd.grad(seen.output.square().sum(), leaves)]
    wanted = [exact.output, exact.lse, *torch.autograd.grad(exact.output.square().sum(), wide)]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=4 * budget, rtol=budget)
        assert torch.linalg.norm(torch.nan_to_num(ours.double() - theirs, 0.0, 0.0, 0.0)) <= budget * (
            torch.linalg.norm(torch.nan_to_num(theirs, 0.0, 0.0, 0.0)) + 1e-3
        )
    output = regard.attention(query, key, value, mask=mask, backend="sdpa-flash").output
    (slope,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(regard.BackendError, match="reference"):
        slope.square().sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["masked", "sdpa-flash"])
def test_padding_in_a_captured_graph_follows_its_lengths(backend: str):
    query, key, value = (each.detach() for each in tensors("heads last", torch.bfloat16, "cuda", 64))
    lengths = torch.tensor([5, 1, 7], device="cuda")
    mask = regard.padding(lengths)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        regard.attention(query, key, value, mask=mask, backend=backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = regard.attention(query, key, value, mask=mask, backend=backend).output
    for values in ([5, 1, 7], [2, 0, 6]):
        lengths.copy_(torch.tensor(values))
        graph.replay()
        assert torch.equal(captured, regard.attention(query, key, value, mask=mask, backend=backend).output)


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
def test_a_memory_that_is_not_cleaned_hides_nan_behind_its_padding(backend: str):
    key = torch.randn(2, 1, 5, 4)
    clean = regard.prepare(key, mask=regard.padding([5, 2]))
    key[1, :, 2:] = torch.nan
    memory = replace(clean, key=key, value=key, cleaned=False)
    query = torch.randn(2, 1, 3, 4)
    for _ in range(2):  # the second call may run by a plan
        outputs = [regard.attention(query, each, backend=backend).output for each in (clean, memory)]
        torch.testing.assert_close(*outputs)
