"""Recurrent layers: reading on over the padding is reading what is packed, whatever the cell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.layers.gru import gru_ways
from regard.layers.recurrent import CELLS, Recurrence, Recurrent, flip

LENGTHS = [[5, 1, 3, 5], [1, 1], [4, 4, 4], [7]]


def inputs(lengths: list[int]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    x[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = 100.0  # on padding, anything
    return x.requires_grad_(), torch.tensor(lengths)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_reading_on_over_padding_is_reading_what_is_packed(
    cell: str, depth: int, both_ways: bool, lengths: list[int]
):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=depth), 3, both_ways=both_ways).double()
    found = []
    for read in (layers.encode, layers.read_on):
        x, lengths_B = inputs(lengths)
        states, last = read(x, lengths_B)
        spread = torch.linspace(-1, 1, states[0].numel(), dtype=torch.float64).view_as(states[0])
        wanted = (states * spread).sum() + sum(each.sin().sum() for each in last)
        gradients = torch.autograd.grad(wanted, [x, *layers.parameters()])
        found.append([states, *last, *gradients])
    for packed, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, packed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_layers_that_drop_something_run_one_by_one_elsewhere(cell: str):
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=2, dropout=0.5), 3).to("meta")
    x = torch.empty(2, 5, 3, device="meta")
    outputs, last = layers.run(x, layers.zeros(x))
    assert outputs.shape == (2, 5, 4) and all(each.shape == (2, 2, 4) for each in last)


def test_a_gradient_written_out_is_not_compiled(monkeypatch: pytest.MonkeyPatch):
    """Its loop would be unrolled, kernels and all; what stands there instead is torch's own."""
    layers, compiling = Recurrent(Recurrence(width=4, cell="gru"), 3, both_ways=True), list[bool]()

    def watched(*given: Tensor) -> Tensor:
        compiling.append(torch.compiler.is_compiling())
        return gru_ways(*given)

    monkeypatch.setattr("regard.layers.recurrent.gru_ways", watched)
    x = torch.randn(2, 5, 3)
    torch._dynamo.reset()
    inside = torch.ones(2, 5, 1, dtype=torch.bool)
    given = ([x, x.flip(1)], inside, layers.layers.all_weights)
    found = torch.compile(layers._directions, backend="eager", dynamic=False)(*given)
    torch._dynamo.reset()
    assert compiling == []
    for (outputs, _), (wanted, _) in zip(found, layers._directions(*given), strict=True):
        torch.testing.assert_close(outputs, wanted)
    assert compiling == [False]


def test_flipped_twice_is_as_it_was():
    lengths = torch.tensor([4, 1, 3])
    sequences = torch.randn(3, 4, 2)
    turned = flip(sequences, lengths)
    assert turned[2, :3].equal(sequences[2, :3].flip(0)) and turned[2, 3].equal(sequences[2, 3])
    assert flip(turned, lengths).equal(sequences)
