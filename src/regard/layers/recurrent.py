"""Recurrent layers: all steps at once where nothing is fed back, step by step where something is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.dimensions import autocast_on
from regard.errors import UnknownName, positive
from regard.layers.aligned_linear import linear
from regard.layers.gru import gru_ways

__all__ = ["CELLS", "Hidden", "Recurrence", "Recurrent", "flip"]

Hidden = tuple[Tensor, ...]
"""The state of a stack of cells, each (rows, depth, width): h, and for an LSTM h and c."""


def _tanh_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    return (torch.tanh(x_BG + u_BG),)


def _gru_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    x_gates, x_new = x_BG.tensor_split((x_BG.shape[-1] // 3 * 2,), -1)
    u_gates, u_new = u_BG.tensor_split((u_BG.shape[-1] // 3 * 2,), -1)
    reset, keep = torch.sigmoid(x_gates + u_gates).chunk(2, -1)
    new = torch.tanh(x_new + reset * u_new)
    return (torch.lerp(new, hidden[0].to(new.dtype), keep),)


def _lstm_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    take, forget, new, show = (x_BG + u_BG).chunk(4, -1)
    cell = torch.sigmoid(forget) * hidden[1] + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


Step = Callable[[Tensor, Tensor, Hidden], Hidden]
CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Step, Callable[..., tuple[Tensor, ...]]]] = {
    "rnn": (nn.RNN, _tanh_cell, torch.rnn_tanh),
    "gru": (nn.GRU, _gru_cell, torch.gru),
    "lstm": (nn.LSTM, _lstm_cell, torch.lstm),
}
"""Each cell three times: torch's module, which runs a whole sequence; one step, from W x + b and U h + b; and
the function the module calls, for one layer in one direction."""

SHUT = -1e4
"""What shuts a gate whatever else it is given: the sigmoid of it is 0, that of its opposite 1."""


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
        kind, self.cell, self._over = CELLS[recurrence.cell]
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
        return self._zero(like, ways * self.depth)

    def _zero(self, like: Tensor, *sizes: int) -> Hidden:
        zero = like.new_zeros(len(like), *sizes, self.layers.hidden_size)
        return (zero, zero) if isinstance(self.layers, nn.LSTM) else (zero,)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Read sequences (B, S, I) of these lengths: states (B, S, E), 0 past the end, and the last state."""
        if x.device.type != "cpu":  # to pack them, the device would have to be waited for
            return self.read_on(x, lengths)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.layers(packed)
        states_BSE, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return states_BSE, self._ours(last)

    def read_on(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """encode() that never asks how long a sequence is: it reads on to the end of the padding, and what
        is found there is dropped. Backwards it reads each sequence turned round, so that padding is last."""
        inside_BS1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        ways = 2 if self.layers.bidirectional else 1
        states, last = x, list[Hidden]()
        for layer in range(self.depth):
            if layer:
                states = functional.dropout(states, self.dropout, self.training)
            weights = self.layers.all_weights[layer * ways : (layer + 1) * ways]
            read = [flip(states, lengths) if way else states for way in range(ways)]
            found = self._directions(read, inside_BS1, weights)
            final_B1M = (lengths - 1)[:, None, None].expand(-1, 1, self.layers.hidden_size)
            last += [(outputs.gather(1, final_B1M).squeeze(1), *ended[1:]) for outputs, ended in found]
            both = [flip(outputs, lengths) if way else outputs for way, (outputs, _) in enumerate(found)]
            states = torch.where(inside_BS1, torch.cat(both, -1) if ways > 1 else both[0], 0.0)
        return states, tuple(torch.stack(each, 1) for each in zip(*last, strict=True))

    def _directions(
        self, read: Sequence[Tensor], inside_BS1: Tensor, weights: Sequence[Sequence[Tensor]]
    ) -> list[tuple[Tensor, Hidden]]:
        """All directions of one layer: GRUs that learn side by side, others one by one."""
        # Asked here, where it is known: the compiler would unroll the loop of gru_ways, kernels and all.
        if self._over is not torch.gru or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return [self._one_way(x, inside_BS1, own) for x, own in zip(read, weights, strict=True)]
        gates = [linear(x, own[0], own[2]) for x, own in zip(read, weights, strict=True)]
        weight, bias = (torch.stack([own[at] for own in weights]) for at in (1, 3))
        return [(outputs, ()) for outputs in gru_ways(torch.stack(gates), weight, bias)]

    def _one_way(self, x: Tensor, inside_BS1: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """One layer in one direction, from 0: its outputs, and its state behind the padding."""
        width = self.layers.hidden_size
        if isinstance(self.layers, nn.LSTM):
            # A column that is 1 on padding shuts the gate that takes and opens the one that keeps, exactly, a
            # sigmoid of so much being 0 or 1: the cells come through the padding as they were.
            shut, still = x.new_full((width, 1), SHUT), x.new_zeros(2 * width, 1)
            x = torch.cat((x, (~inside_BS1).to(x.dtype)), -1)
            wider = torch.cat((weights[0], torch.cat((shut, -shut, still)).to(weights[0].dtype)), 1)
            weights = [wider, *weights[1:]]
        return self._whole(x, self._zero(x), weights)

    def _whole(self, x: Tensor, hidden: Hidden, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """One layer in one direction over a whole sequence, from a state."""
        x, hidden, precise = _single(x, hidden)
        given = tuple(each[None] for each in hidden)
        options = (weights, True, 1, 0.0, self.training, False, True)
        with precise, warnings.catch_warnings():
            # Those of one direction of several never lie together.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            found = self._over(x, given if len(given) > 1 else given[0], *options)
        return found[0], tuple(each.squeeze(0) for each in found[1:])

    def run(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """All steps at once, from a state: x (B, T, I) -> outputs (B, T, width) and the state after them."""
        if x.device.type != "cpu" and self.training and self.dropout:
            # Layer by layer: what cuDNN drops between them does not follow torch.manual_seed.
            after = []
            for layer in range(self.depth):
                x = functional.dropout(x, self.dropout) if layer else x
                own = tuple(each[:, layer].contiguous() for each in hidden)
                x, last = self._whole(x, own, self.layers.all_weights[layer])
                after.append(last)
            return x, tuple(torch.stack(each, 1) for each in zip(*after, strict=True))
        x, hidden, precise = _single(x, hidden)
        given = tuple(each.transpose(0, 1).contiguous() for each in hidden)
        with precise:
            outputs, last = self.layers(x, given if len(given) > 1 else given[0])
        return outputs, self._ours(last)

    def gates(self, x: Tensor) -> Tensor:
        """What the first layer takes from a sequence (B, T, I), for all steps at once: W x + b."""
        weights = self.layers.all_weights[0]
        return linear(x, weights[0][:, : self.input_size], weights[2])

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


def _single(x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden, AbstractContextManager[object]]:
    """Under autocast on CUDA, float32: cuDNN would take float16 instead, in which small gradients vanish."""
    if x.device.type != "cuda" or not autocast_on("cuda"):
        return x, hidden, nullcontext()
    return x.float(), tuple(each.float() for each in hidden), torch.autocast("cuda", enabled=False)


def flip(sequences: Tensor, lengths: Tensor) -> Tensor:
    """Sequences (B, S, ...) with the first `lengths` of each in reverse order, the padding left in place.

    >>> flip(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2]))
    tensor([[3, 2, 1],
            [5, 4, 0]])
    """
    position = torch.arange(sequences.shape[1], device=sequences.device)
    turned_BS = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
    turned = turned_BS.reshape(*turned_BS.shape, *(1 for _ in sequences.shape[2:]))
    return sequences.gather(1, turned.expand_as(sequences))
