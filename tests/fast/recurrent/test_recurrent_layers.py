"""Twins of recurrent layers: encoding padded sequences without packing equals packed sequences."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor

from regard.fast.recurrent import recurrent
from regard.fast.recurrent.gru_cpu import gru_on_cpu
from regard.fast.recurrent.recurrent import encode_padded
from regard.fast.twins import Twins
from regard.layers.recurrent import CELLS, Recurrence, Recurrent

LENGTHS = [[5, 1, 3, 5], [1, 1], [4, 4, 4], [7]]


def inputs(lengths: list[int]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    x[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = 100.0  # arbitrary values on padding
    return x.requires_grad_(), torch.tensor(lengths)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_encoding_without_packing_equals_packing(cell: str, depth: int, both_ways: bool, lengths: list[int]):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=depth), 3, both_ways=both_ways).double()
    results = []
    for encode in (layers.encode, partial(encode_padded, layers)):
        x, lengths_B = inputs(lengths)
        states, last = encode(x, lengths_B)
        spread = torch.linspace(-1, 1, states[0].numel(), dtype=torch.float64).view_as(states[0])
        loss = (states * spread).sum() + sum(each.sin().sum() for each in last)
        gradients = torch.autograd.grad(loss, [x, *layers.parameters()])
        results.append([states, *last, *gradients])
    for packed, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, packed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[5, 4, 3, 5], [1, 1], [7]], ids=str)
@pytest.mark.parametrize("both_ways", [False, True])
def test_gru_in_training_on_a_cpu_equals_packing(
    both_ways: bool, lengths: list[int], monkeypatch: pytest.MonkeyPatch
):
    layers = Recurrent(Recurrence(width=4), 3, both_ways=both_ways).double()
    calls, results = [], []
    monkeypatch.setattr(recurrent, "gru_on_cpu", lambda *given: calls.append(1) or gru_on_cpu(*given))
    for fast in (False, True):
        x, lengths_B = inputs(lengths)
        with Twins(layers) if fast else nullcontext():
            states, (last,) = layers.encode(x, lengths_B)
        spread = torch.linspace(-1, 1, states[0].numel(), dtype=torch.float64).view_as(states[0])
        gradients = torch.autograd.grad((states * spread).sum() + last.sin().sum(), [x, *layers.parameters()])
        results.append([states, last, *gradients])
    assert len(calls) == 1
    for packed, steps in zip(*results, strict=True):
        torch.testing.assert_close(steps, packed, rtol=0, atol=1e-12)


def test_gru_on_a_cpu_is_used_in_training_with_little_padding(monkeypatch: pytest.MonkeyPatch):
    layers, calls = Recurrent(Recurrence(width=4), 3), []
    monkeypatch.setattr(recurrent, "gru_on_cpu", lambda *given: calls.append(1) or gru_on_cpu(*given))
    x, seen = torch.randn(2, 5, 3), []
    with Twins(layers):
        layers.encode(x, torch.tensor([5, 4]))
        assert len(calls) == 1
        layers.encode(x, torch.tensor([5, 1]))
        with torch.no_grad():
            layers.encode(x, torch.tensor([5, 4]))
        with torch.autocast("cpu", torch.bfloat16):
            layers.encode(x, torch.tensor([5, 4]))
        assert len(calls) == 2
        handle = layers.layers.register_forward_hook(lambda *_: seen.append(1))
        layers.encode(x, torch.tensor([5, 4]))
        handle.remove()
        layers.eval().encode(x, torch.tensor([5, 4]))
    assert len(calls) == 2 and seen == [1]


def test_gradcheck_of_the_gru_on_a_cpu():
    torch.manual_seed(0)
    layer, (x, lengths) = torch.nn.GRU(3, 2, bidirectional=True).double(), inputs([3, 1])

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return gru_on_cpu(x, lengths, [weights[:4], weights[4:]])

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


@pytest.mark.parametrize("cell", CELLS)
def test_layers_with_dropout_run_one_at_a_time_off_the_cpu(cell: str):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=2, dropout=0.5), 3).to("meta")
    x = torch.empty(2, 5, 3, device="meta")
    with Twins(layers):
        outputs, last = layers.run(x, layers.zeros(x))
    assert outputs.shape == (2, 5, 4) and all(each.shape == (2, 2, 4) for each in last)


@pytest.mark.parametrize("cell", CELLS)
def test_layers_run_in_vmap(cell: str):
    torch.manual_seed(0)
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=2), 3, both_ways=True).double()
    x, lengths = torch.randn(2, 2, 5, 3, dtype=torch.float64), torch.tensor([5, 2])
    with Twins(layers):
        states, _ = torch.vmap(lambda x: layers.encode(x, lengths))(x)
    for mine, own in zip(states, x, strict=True):
        torch.testing.assert_close(mine, layers.encode(own, lengths)[0], rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width"), [(5, 136), (80, 136), (3, 7), (5, 1000)])
def test_gru_in_half_precision(rows: int, width: int):
    """Error against float64: at most twice that of plain PyTorch in bfloat16, plus one rounding step."""
    torch.manual_seed(0)
    lengths = torch.arange(rows, device="cuda") % 9 + 1
    x = torch.randn(rows, 9, 20, device="cuda")
    layers = Recurrent(Recurrence(width=width), 20, both_ways=True).cuda()
    results = []
    for dtype, kernels in ((torch.float64, False), (torch.bfloat16, False), (torch.float32, True)):
        own, copied = x.to(dtype).requires_grad_(), copy.deepcopy(layers).to(dtype)
        half = torch.autocast("cuda", torch.bfloat16, enabled=kernels)
        with half, Twins(copied), mock.patch.object(recurrent, "by_kernel", lambda _, on=kernels: on):
            states, (last,) = copied.encode(own, lengths)
        loss = states.double().sin().sum() + last.double().sum()
        gradients = torch.autograd.grad(loss, [own, *copied.parameters()])
        results.append([each.detach().double() for each in (states, last, *gradients)])
    for exact, plain, mine in zip(*results, strict=True):
        error, allowed = ((each - exact).norm().item() for each in (mine, plain))
        assert error <= 2 * allowed + 2**-8 * exact.norm().item()
