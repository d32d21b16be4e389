"""Recurrent layers (RNN, GRU, LSTM) over sequences with the batch as the first dimension of their states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.dimensions import full_precision
from regard.errors import UnknownName, positive

__all__ = ["CELLS", "Hidden", "Recurrence", "Recurrent", "flip"]

Hidden = tuple[Tensor, ...]
"""The state of a stack of recurrent layers: (h,), or (h, c) for an LSTM. Each tensor has shape (B, depth,
width), or (B, 2 depth, width) for bidirectional layers. B is the batch size."""

CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
"""The layers of each cell, by the name of the cell."""


@dataclass(frozen=True)
class Recurrence:
    """Settings that a recurrent encoder and its decoder share.

    width: size of the states.
    embedding: size of the word embeddings. Default: width.
    cell: "rnn" (tanh), "gru" or "lstm".
    depth: number of layers.
    dropout: dropout probability for the embeddings, between layers, and before the softmax.

    >>> Recurrence(width=8, cell="lstm").embedding_width
    8
    """

    width: int = 256
    embedding: int | None = None
    cell: str = "gru"
    depth: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise UnknownName("cell", self.cell, CELLS)
        sizes = {"width": self.width, "depth": self.depth, "embedding": self.embedding_width}
        positive("Recurrence()", self.dropout, **sizes)

    @property
    def embedding_width(self) -> int:
        return self.width if self.embedding is None else self.embedding


class Recurrent(nn.Module):
    """A stack of recurrent layers that runs over whole sequences, or continues from a state.

    recurrence: settings of the layers: cell, width, depth and dropout.
    input_size: size of the inputs.
    both_ways: whether the layers are bidirectional.

    Under autocast, the layers compute in the dtype of their weights.

    >>> layers, x = Recurrent(Recurrence(width=4, cell="lstm", depth=2), input_size=3), torch.randn(2, 5, 3)
    >>> whole, _ = layers.run(x, layers.zeros(x))
    >>> hidden = layers.zeros(x)
    >>> for t in range(5):
    ...     output, hidden = layers.run(x[:, t : t + 1], hidden)
    >>> torch.allclose(output[:, 0], whole[:, 4], atol=1e-6)
    True
    """

    def __init__(self, recurrence: Recurrence, input_size: int, *, both_ways: bool = False):
        super().__init__()
        self.depth = recurrence.depth
        self.dropout = recurrence.dropout if recurrence.depth > 1 else 0.0
        self.layers = CELLS[recurrence.cell](
            input_size,
            recurrence.width,
            recurrence.depth,
            dropout=self.dropout,
            bidirectional=both_ways,
            batch_first=True,
        )
        for name, weight in self.layers.named_parameters():
            if name.startswith("weight_hh"):
                for square in weight.data.split(recurrence.width):
                    nn.init.orthogonal_(square)

    def zeros(self, like: Tensor) -> Hidden:
        """Return a state of zeros for a batch of B sequences.

        like: a tensor (B, ...) with the batch size, dtype and device of the state.
        """
        layers = 2 * self.depth if self.layers.bidirectional else self.depth
        zero = like.new_zeros(len(like), layers, self.layers.hidden_size)
        return (zero, zero) if isinstance(self.layers, nn.LSTM) else (zero,)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Run the layers over whole sequences, from a state of zeros.

        x: (B, S, input_size), the inputs, padded at the end.
        lengths: number of tokens of each sequence, (B,).

        Returns the states (B, S, E), which are 0 on padding, and the last state of each sequence. E is width,
        or 2 width for bidirectional layers.
        """
        x = x.to(next(self.parameters()).dtype)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with full_precision(x):
            states, last = self.layers(packed)
        states_BSE, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return states_BSE, _batch_first(last)

    def run(self, x: Tensor, hidden: Hidden, position: int = 0) -> tuple[Tensor, Hidden]:
        """Run the layers over T steps; return the outputs (B, T, width) and the state after the last step.

        x: (B, T, input_size), the inputs.
        hidden: the state before the first step, for example the result of zeros().
        position: number of steps before x. It has no effect here; LSTMN.run() needs it.
        """
        dtype = next(self.parameters()).dtype
        first = tuple(each.transpose(0, 1).to(dtype).contiguous() for each in hidden)
        with full_precision(x):
            outputs, last = self.layers(x.to(dtype), first if len(first) > 1 else first[0])
        return outputs, _batch_first(last)


def _batch_first(last: Tensor | tuple[Tensor, Tensor]) -> Hidden:
    """Return the state of a layer of torch, (layers, B, width), as tensors (B, layers, width)."""
    return tuple(each.transpose(0, 1) for each in (last if isinstance(last, tuple) else (last,)))


def flip(sequences: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first lengths[b] elements of each sequence b, and leave the padding in place.

    sequences: (B, S, ...).
    lengths: (B,).

    >>> flip(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2]))
    tensor([[3, 2, 1],
            [5, 4, 0]])
    """
    position = torch.arange(sequences.shape[1], device=sequences.device)
    index_BS = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
    index = index_BS.reshape(*index_BS.shape, *(1 for _ in sequences.shape[2:]))
    return sequences.gather(1, index.expand_as(sequences))
