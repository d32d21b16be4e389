"""Recurrent layers: encoding padded sequences without packing equals packed sequences, for every cell."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from regard.layers import gru, recurrent
from regard.layers.bidirectional_gru import bidirectional_gru
from regard.layers.gru import gru_ways
from regard.layers.gru_cpu import gru_on_cpu
from regard.layers.recurrent import CELLS, Recurrence, Recurrent, flip

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
    for encode in (layers.encode, layers.read_on):
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
    monkeypatch.setattr(
        "regard.layers.recurrent.gru_on_cpu", lambda *given: calls.append(1) or gru_on_cpu(*given)
    )
    for most in (0.25, -1.0):  # the second value excludes every batch from gru_on_cpu()
        monkeypatch.setattr("regard.layers.recurrent.MOST_PADDING", most)
        x, lengths_B = inputs(lengths)
        states, (last,) = layers.encode(x, lengths_B)
        spread = torch.linspace(-1, 1, states[0].numel(), dtype=torch.float64).view_as(states[0])
        gradients = torch.autograd.grad((states * spread).sum() + last.sin().sum(), [x, *layers.parameters()])
        results.append([states, last, *gradients])
    assert len(calls) == 1
    for steps, packed in zip(*results, strict=True):
        torch.testing.assert_close(steps, packed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_one_sequence_is_packed_only_if_it_has_padding(
    cell: str, both_ways: bool, monkeypatch: pytest.MonkeyPatch
):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=2), 3, both_ways=both_ways).double().eval()
    x, lengths = inputs([5, 3])
    expected, last = layers.encode(x, lengths)
    short = layers.encode(x[1:], lengths[1:])
    monkeypatch.delattr("regard.layers.recurrent.pack_padded_sequence")
    alone = layers.encode(x[:1], lengths[:1])
    for row, (states, final) in enumerate((alone, short)):
        torch.testing.assert_close(states, expected[row : row + 1], rtol=0, atol=1e-12)
        for own, other in zip(final, last, strict=True):
            torch.testing.assert_close(own, other[row : row + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_layers_with_dropout_run_one_at_a_time_off_the_cpu(cell: str):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=2, dropout=0.5), 3).to("meta")
    x = torch.empty(2, 5, 3, device="meta")
    outputs, last = layers.run(x, layers.zeros(x))
    assert outputs.shape == (2, 5, 4) and all(each.shape == (2, 2, 4) for each in last)


def test_compile_does_not_use_gru_ways(monkeypatch: pytest.MonkeyPatch):
    """torch.compile would unroll the loop of gru_ways(); under it, torch's own GRU is used instead."""
    layers, compiling = Recurrent(Recurrence(width=4, cell="gru"), 3, both_ways=True), list[bool]()

    def recorded(*tensors: Tensor) -> Tensor:
        compiling.append(torch.compiler.is_compiling())
        return gru_ways(*tensors)

    monkeypatch.setattr("regard.layers.recurrent.gru_ways", recorded)
    x = torch.randn(2, 5, 3)
    torch._dynamo.reset()
    inside = torch.ones(2, 5, 1, dtype=torch.bool)
    arguments = ([x, x.flip(1)], inside, layers.layers.all_weights)
    compiled = torch.compile(layers._directions, backend="eager", dynamic=False)(*arguments)
    torch._dynamo.reset()
    assert compiling == []
    for (outputs, _), (expected, _) in zip(compiled, layers._directions(*arguments), strict=True):
        torch.testing.assert_close(outputs, expected)
    assert compiling == [False]


def test_flip_twice_restores_the_sequence():
    lengths = torch.tensor([4, 1, 3])
    sequences = torch.randn(3, 4, 2)
    reversed_once = flip(sequences, lengths)
    assert reversed_once[2, :3].equal(sequences[2, :3].flip(0)) and reversed_once[2, 3].equal(sequences[2, 3])
    assert flip(reversed_once, lengths).equal(sequences)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_bidirectional_gru_equals_packed_sequences(lengths: list[int]):
    torch.manual_seed(0)
    layers = Recurrent(Recurrence(width=6), 5, both_ways=True).double()
    x = torch.randn(len(lengths), max(lengths), 5, dtype=torch.float64, requires_grad=True)
    results, leaves = [], [x, *layers.layers.parameters()]
    packed, _ = layers.encode(x, torch.tensor(lengths))
    joint = bidirectional_gru(x, torch.tensor(lengths), layers.layers.all_weights)
    for states, first in ((packed, packed[:, 0, 6:]), joint):
        loss = states.sin().sum() + states[:, 0].sum() + first.square().sum()
        results.append([states, first, *torch.autograd.grad(loss, leaves)])
    for expected, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width"), [(5, 136), (80, 136), (3, 7), (5, 1000)])
def test_bidirectional_gru_in_half_precision(rows: int, width: int):
    """Error against float64: at most twice that of gru_ways() in bfloat16, plus one rounding step."""
    torch.manual_seed(0)
    lengths = torch.arange(rows, device="cuda") % 9 + 1
    x = torch.randn(rows, 9, 20, device="cuda")
    layers = Recurrent(Recurrence(width=width), 20, both_ways=True).cuda()
    results = []
    for dtype, kernels in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        own, _ = x.to(dtype).requires_grad_(), layers.to(dtype)
        half = torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32)
        with half, mock.patch.object(recurrent, "by_kernel", lambda _, kernels=kernels: kernels):
            states, (last,) = layers.encode(own, lengths)
        loss = states.double().sin().sum() + last.double().sum()
        gradients = torch.autograd.grad(loss, [own, *layers.parameters()])
        results.append([each.detach().double() for each in (states, last, *gradients)])
    for exact, plain, mine in zip(*results, strict=True):
        error, allowed = ((each - exact).norm().item() for each in (mine, plain))
        assert error <= 2 * allowed + 2**-8 * exact.norm().item()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [5, 80])
def test_gru_in_half_precision_is_as_precise_as_plain_pytorch(rows: int, monkeypatch: pytest.MonkeyPatch):
    """Error against float64: at most twice that of plain PyTorch in bfloat16, plus one rounding step."""
    torch.manual_seed(0)
    leaves = [torch.randn(sizes, device="cuda") / 5 for sizes in ((2, rows, 9, 408), (2, 408, 136), (2, 408))]
    results = []
    for dtype, kernels in ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        with monkeypatch.context() as patch:
            if not kernels:
                patch.setattr(gru, "by_kernel", lambda _: False)
            own = [each.bfloat16().to(dtype).requires_grad_() for each in leaves]
            states = gru.gru_ways(*own)
            gradients = torch.autograd.grad(states.double().sin().sum(), own)
        results.append([each.detach().double() for each in (states, *gradients)])
    for exact, plain, mine in zip(*results, strict=True):
        error, allowed = ((each - exact).norm().item() for each in (mine, plain))
        assert error <= 2 * allowed + 2**-8 * exact.norm().item()


def test_flip_has_the_gradients_of_its_definition():
    lengths = torch.tensor([3, 1, 4, 2])
    sequences = torch.randn(4, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: flip(x, lengths), [sequences])
    assert torch.autograd.gradgradcheck(lambda x: flip(x, lengths).sin(), [sequences])
