"""Recurrent layers: encoding padded sequences without packing equals packed sequences, for every cell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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
