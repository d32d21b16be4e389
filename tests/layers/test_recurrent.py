"""Recurrent layers: encode() skips padding, and flip() reverses sequences without their padding."""

from __future__ import annotations

import pytest
import torch

from regard.layers.recurrent import CELLS, Recurrence, Recurrent, flip


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_encoding_a_batch_equals_encoding_its_sequences(cell: str, depth: int, both_ways: bool):
    torch.manual_seed(0)
    layers = Recurrent(Recurrence(width=4, cell=cell, depth=depth), 3, both_ways=both_ways).double()
    lengths = [5, 1, 3, 5]
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    for row, length in enumerate(lengths):
        x[row, length:] = torch.nan
    states, last = layers.encode(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, hidden = layers.run(x[row : row + 1, :length], layers.zeros(x[:1]))
        assert states[row, length:].eq(0).all()
        torch.testing.assert_close(states[row, :length], alone[0], rtol=0, atol=1e-12)
        for mine, own in zip(last, hidden, strict=True):
            torch.testing.assert_close(mine[row], own[0], rtol=0, atol=1e-12)


def test_flip_twice_restores_the_sequence():
    lengths = torch.tensor([4, 1, 3])
    sequences = torch.randn(3, 4, 2)
    reversed_once = flip(sequences, lengths)
    assert reversed_once[2, :3].equal(sequences[2, :3].flip(0)) and reversed_once[2, 3].equal(sequences[2, 3])
    assert flip(reversed_once, lengths).equal(sequences)


def test_flip_has_the_gradients_of_its_definition():
    lengths = torch.tensor([3, 1, 4, 2])
    sequences = torch.randn(4, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: flip(x, lengths), [sequences])
    assert torch.autograd.gradgradcheck(lambda x: flip(x, lengths).sin(), [sequences])
