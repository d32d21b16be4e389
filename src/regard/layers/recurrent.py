"""Recurrent layers: all steps at once where nothing is fed back, step by step where something is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.errors import UnknownName, positive

__all__ = ["CELLS", "Hidden", "Recurrence", "Recurrent"]

Hidden = tuple[Tensor, ...]
"""The state of a stack of cells, each (rows, depth, width): h, and for an LSTM h and c."""


def _tanh_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    return (torch.tanh(x_BG + u_BG),)


def _gru_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    x_gates, x_new = x_BG.tensor_split((x_BG.shape[-1] // 3 * 2,), -1)
    u_gates, u_new = u_BG.tensor_split((u_BG.shape[-1] // 3 * 2,), -1)
    reset, keep = torch.sigmoid(x_gates + u_gates).chunk(2, -1)
    return (torch.lerp(torch.tanh(x_new + reset * u_new), hidden[0], keep),)


def _lstm_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    take, forget, new, show = (x_BG + u_BG).chunk(4, -1)
    cell = torch.sigmoid(forget) * hidden[1] + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Callable[[Tensor, Tensor, Hidden], Hidden]]] = {
    "rnn": (nn.RNN, _tanh_cell),
    "gru": (nn.GRU, _gru_cell),
    "lstm": (nn.LSTM, _lstm_cell),
}
"""Each cell twice: torch's module, which runs a whole sequence, and one step, from W x + b and U h + b."""


@dataclass(frozen=True)
class Recurrence:
    """Of what a recurrent encoder and decoder are made.

    width: of the states. embedding: of the words, width unless given. cell: rnn (tanh), gru or lstm.
    depth: how many layers. dropout: of embeddings, between layers and before the softmax.

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
    """A stack of recurrent cells that runs over a sequence at once, or takes one step with something fed in.

    recurrence: which cells. input_size: of the sequence; feed_size: of what is fed in at each step besides,
    such as the last reading of an attention. Both ways use the same weights and agree.

    >>> import torch
    >>> layers, x = Recurrent(Recurrence(width=4, cell="lstm", depth=2), input_size=3), torch.randn(2, 5, 3)
    >>> whole, _ = layers.run(x, layers.zeros(x))
    >>> hidden, gates = layers.zeros(x), layers.gates(x)
    >>> for t in range(5):
    ...     hidden, output = layers.advance(gates[:, t], None, hidden)
    >>> torch.allclose(output, whole[:, 4], atol=1e-6)
    True
    """

    def __init__(
        self, recurrence: Recurrence, input_size: int, feed_size: int = 0, *, both_ways: bool = False
    ):
        super().__init__()
        kind, self.cell = CELLS[recurrence.cell]
        self.input_size, self.depth = input_size, recurrence.depth
        self.dropout = recurrence.dropout if recurrence.depth > 1 else 0.0
        self.layers = kind(
            input_size + feed_size,
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
        """The state before anything was read, for a sequence (B, T, ...)."""
        ways = 2 if self.layers.bidirectional else 1
        zero = like.new_zeros(len(like), ways * self.depth, self.layers.hidden_size)
        return (zero, zero) if isinstance(self.layers, nn.LSTM) else (zero,)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Read sequences (B, S, I) of these lengths: states (B, S, E), 0 past the end, and the last state."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.layers(packed)
        states_BSE, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return states_BSE, self._ours(last)

    def run(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """All steps at once, from a state: x (B, T, I) -> outputs (B, T, width) and the state after them."""
        given = tuple(each.transpose(0, 1).contiguous() for each in hidden)
        outputs, last = self.layers(x, given if len(given) > 1 else given[0])
        return outputs, self._ours(last)

    def gates(self, x: Tensor) -> Tensor:
        """What the first layer takes from a sequence (B, T, I), for all steps at once: W x + b."""
        weights = self.layers.all_weights[0]
        return functional.linear(x, weights[0][:, : self.input_size], weights[2])

    def advance(self, gates: Tensor, feed: Tensor | None, hidden: Hidden) -> tuple[Hidden, Tensor]:
        """One step: gates (B, G) of this step, what is fed in (B, feed_size), and the state before it."""
        if feed is not None:
            gates = gates + functional.linear(feed, self.layers.all_weights[0][0][:, self.input_size :])
        after, output = [], gates
        for layer in range(self.depth):
            own = tuple(each[:, layer] for each in hidden)
            weights = self.layers.all_weights[layer]
            if layer:
                output = functional.dropout(output, self.dropout, self.training)
                gates = functional.linear(output, weights[0], weights[2])
            after.append(self.cell(gates, functional.linear(own[0], weights[1], weights[3]), own))
            output = after[-1][0]
        return tuple(torch.stack(each, 1) for each in zip(*after, strict=True)), output

    def _ours(self, last: Tensor | tuple[Tensor, Tensor]) -> Hidden:
        return tuple(each.transpose(0, 1) for each in (last if isinstance(last, tuple) else (last,)))
