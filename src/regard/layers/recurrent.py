"""Recurrent layers (RNN, GRU, LSTM): over a whole sequence at once, or one step at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.dimensions import autocast_on, in_transform
from regard.errors import UnknownName, positive
from regard.kernels.choice import by_kernel
from regard.layers.aligned_linear import linear
from regard.layers.bidirectional_gru import bidirectional_gru
from regard.layers.gru import gru_ways
from regard.layers.gru_cpu import gru_on_cpu
from regard.layers.joint_linear import is_hooked

__all__ = ["CELLS", "Hidden", "Recurrence", "Recurrent", "flip"]

Hidden = tuple[Tensor, ...]
"""The state of a stack of recurrent layers: (h,), or (h, c) for an LSTM. Each tensor has shape (B, depth,
width), or (B, 2 depth, width) for bidirectional layers. B is the batch size."""


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
"""Three implementations of each cell, by the name of the cell:

1. the torch module, which runs all layers over a whole sequence;
2. a function that computes one step from W x + b, U h + b and the state;
3. the torch function that runs one layer in one direction over a whole sequence.
"""

MOST_PADDING = 0.25
"""The largest share of padding in a batch for which gru_on_cpu() is used; torch's GRU skips the padding."""

CLOSED = -1e4
"""A large negative number that closes or opens a gate sigmoid(x): sigmoid(x + CLOSED) is exactly 0, and
sigmoid(x - CLOSED) is exactly 1."""


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
    """A stack of recurrent layers that runs over a whole sequence, or one step at a time with input feeding.

    recurrence: settings of the layers: cell, width, depth and dropout.
    input_size: size of the inputs.
    feed_size: size of an extra input at each step, such as the previous attention context (input feeding); 0
        for none.
    both_ways: whether the layers are bidirectional.

    run() computes a whole sequence, advance() one step. They use the same weights and give the same results.

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
        """Return a state of zeros for a batch of B sequences.

        like: a tensor (B, ...) with the batch size, dtype and device of the state.
        """
        ways = 2 if self.layers.bidirectional else 1
        return self._zero(like, ways * self.depth)

    def _zero(self, like: Tensor, *sizes: int) -> Hidden:
        zero = like.new_zeros(len(like), *sizes, self.layers.hidden_size)
        return (zero, zero) if isinstance(self.layers, nn.LSTM) else (zero,)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Run the layers over whole sequences, from a state of zeros.

        x: (B, S, input_size), the inputs, padded at the end.
        lengths: number of tokens of each sequence, (B,).

        Returns the states (B, S, E), which are 0 on padding, and the last state of each sequence. E is width,
        or 2 width for bidirectional layers.
        """
        # On a GPU, the host waits for pack_padded_sequence(), but not for read_on(), which calls no hooks.
        if in_transform() or (x.device.type != "cpu" and not is_hooked(self.layers)):
            return self.read_on(x, lengths)
        if self._suits_cpu_gru(x, lengths):
            return self._cpu_gru(x, lengths)
        if len(x) == 1 and not self.training and int(lengths[0]) == x.shape[1]:  # no padding, so no packing
            states, last = self.layers(x)
            return states, self._batch_first(last)
        x, _, precise = _to_float32(x, ())
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with precise:
            states, last = self.layers(packed)
        states_BSE, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return states_BSE, self._batch_first(last)

    def encoded_states(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states (B, S, 2 width) of encode() of bidirectional layers.

        Also returns the state of the last layer at the first position, in the backward direction, (B, width).
        """
        joint = self.depth == 1 and x.device.type != "cpu" and self._runs_jointly() and by_kernel(x)
        if joint and not is_hooked(self.layers):
            return bidirectional_gru(x, lengths, self.layers.all_weights)
        states = self.encode(x, lengths)[0]
        return states, states[:, 0, self.layers.hidden_size :]

    def _suits_cpu_gru(self, x: Tensor, lengths: Tensor) -> bool:
        """Return whether gru_on_cpu() can run the layer, and is faster: in training, with little padding."""
        if not (self.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return False
        if is_hooked(self.layers):
            return False
        single = isinstance(self.layers, nn.GRU) and self.depth == 1 and not autocast_on("cpu")
        dtypes = {x.dtype, *(each.dtype for each in self.layers.all_weights[0])}
        filled = int(lengths.sum()) >= (1 - MOST_PADDING) * x.shape[0] * x.shape[1] > 0
        return single and filled and dtypes in ({torch.float32}, {torch.float64})

    def _cpu_gru(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Compute the result of encode() with gru_on_cpu()."""
        states_BSE = gru_on_cpu(x, lengths, self.layers.all_weights)
        width = self.layers.hidden_size
        final_B1M = (lengths - 1)[:, None, None].expand(-1, 1, width)
        last = [states_BSE[..., :width].gather(1, final_B1M), states_BSE[:, :1, width:]]
        return states_BSE, (torch.cat(last, 1) if self.layers.bidirectional else last[0],)

    def read_on(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Compute the same result as encode(), but without pack_padded_sequence().

        pack_padded_sequence() needs the lengths on the CPU, so the CPU would wait for the GPU. Here, the
        layers also run over the padding, and the states of the padding are then set to 0. For the backward
        direction, each sequence is reversed, but the padding stays at the end.
        """
        ways = 2 if self.layers.bidirectional else 1
        states, last = x, list[Hidden]()
        for layer in range(self.depth):
            if layer:
                states = functional.dropout(states, self.dropout, self.training)
            weights = self.layers.all_weights[layer * ways : (layer + 1) * ways]
            if ways == 2 and self._runs_jointly() and by_kernel(states):
                states, _ = bidirectional_gru(states, lengths, weights)
                final = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.layers.hidden_size)
                forwards, backwards = states.chunk(2, -1)
                last += [(forwards.gather(1, final).squeeze(1),), (backwards[:, 0],)]
                continue
            inside_BS1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
            inputs = [flip(states, lengths) if way else states for way in range(ways)]
            results = self._directions(inputs, inside_BS1, weights)
            final_B1M = (lengths - 1)[:, None, None].expand(-1, 1, self.layers.hidden_size)
            last += [(outputs.gather(1, final_B1M).squeeze(1), *ended[1:]) for outputs, ended in results]
            both = [flip(outputs, lengths) if way else outputs for way, (outputs, _) in enumerate(results)]
            states = torch.where(inside_BS1, torch.cat(both, -1) if ways > 1 else both[0], 0.0)
        return states, tuple(torch.stack(each, 1) for each in zip(*last, strict=True))

    def _directions(
        self, inputs: Sequence[Tensor], inside_BS1: Tensor, weights: Sequence[Sequence[Tensor]]
    ) -> list[tuple[Tensor, Hidden]]:
        """Run all directions of one layer, from a zero state.

        In training, the directions of a GRU run at the same time; otherwise, one runs after the other.

        inputs: the input of each direction.
        inside_BS1: True for positions that are not padding.
        weights: the weights and biases of each direction.

        Returns the outputs of each direction, and its final state (after the padding). The final state of a
        GRU that runs both directions at the same time is empty: read_on() uses only the cell state c of an
        LSTM.
        """
        if not self._runs_jointly():
            return [self._one_way(x, inside_BS1, own) for x, own in zip(inputs, weights, strict=True)]
        gates = [linear(x, own[0], own[2]) for x, own in zip(inputs, weights, strict=True)]
        weight, bias = (torch.stack([own[at] for own in weights]) for at in (1, 3))
        return [(outputs, ()) for outputs in gru_ways(torch.stack(gates), weight, bias)]

    def _runs_jointly(self) -> bool:
        """Whether all directions of a layer run at the same time: for a GRU in training.

        Not under torch.compile: the compiler would unroll the loop over the steps.
        """
        apart = self._over is not torch.gru or in_transform() or torch.compiler.is_compiling()
        return torch.is_grad_enabled() and not apart

    def _one_way(self, x: Tensor, inside_BS1: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """Run one layer in one direction, from a zero state.

        Returns the outputs, and the state after the last step, which can be a padding step. The hidden state
        h changes on padding. The cell state c of an LSTM does not, so the returned c is that of the last
        token.
        """
        width = self.layers.hidden_size
        if isinstance(self.layers, nn.LSTM):
            # Add an input column that is 1 on padding and 0 elsewhere. Its weights close the input gate and
            # open the forget gate exactly (see CLOSED), so that c does not change on padding.
            closed, unchanged = x.new_full((width, 1), CLOSED), x.new_zeros(2 * width, 1)
            x = torch.cat((x, (~inside_BS1).to(x.dtype)), -1)
            wider = torch.cat((weights[0], torch.cat((closed, -closed, unchanged)).to(weights[0].dtype)), 1)
            weights = [wider, *weights[1:]]
        return self._whole(x, self._zero(x), weights)

    def _whole(self, x: Tensor, hidden: Hidden, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """Run one layer in one direction over whole sequences, from the state `hidden`.

        Returns the outputs of all steps, and the state after the last step.
        """
        if in_transform():
            return self._step_by_step(x, hidden, weights)
        x, hidden, precise = _to_float32(x, hidden)
        initial = tuple(each[None] for each in hidden)
        options = (weights, True, 1, 0.0, self.training, False, True)
        with precise, warnings.catch_warnings():
            # cuDNN warns if the weights are not one contiguous chunk of memory. The weights of one direction
            # of one layer never are, so ignore the warning.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            result = self._over(x, initial if len(initial) > 1 else initial[0], *options)
        return result[0], tuple(each.squeeze(0) for each in result[1:])

    def _step_by_step(self, x: Tensor, hidden: Hidden, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """Compute _whole() step by step, because vmap does not support the recurrent layers of torch."""
        outputs = []
        for gates in functional.linear(x, weights[0], weights[2]).unbind(1):
            hidden = self.cell(gates, functional.linear(hidden[0], weights[1], weights[3]), hidden)
            outputs.append(hidden[0])
        # In memory, time is the first dimension, as in the outputs of torch's layers. So dropout samples the
        # same random numbers.
        return torch.stack(outputs).transpose(0, 1), hidden

    def run(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Run the layers over T steps; return the outputs (B, T, width) and the state after the last step.

        x: (B, T, input_size), the inputs.
        hidden: the state before the first step, for example the result of zeros().
        """
        drops = x.device.type != "cpu" and self.training and self.dropout and not is_hooked(self.layers)
        if in_transform() or drops:
            # Run one layer at a time: cuDNN's dropout between layers would not follow torch.manual_seed.
            after = []
            for layer in range(self.depth):
                x = functional.dropout(x, self.dropout, self.training) if layer else x
                own = tuple(each[:, layer].contiguous() for each in hidden)
                x, last = self._whole(x, own, self.layers.all_weights[layer])
                after.append(last)
            return x, tuple(torch.stack(each, 1) for each in zip(*after, strict=True))
        x, hidden, precise = _to_float32(x, hidden)
        initial = tuple(each.transpose(0, 1).contiguous() for each in hidden)
        with precise:
            outputs, last = self.layers(x, initial if len(initial) > 1 else initial[0])
        return outputs, self._batch_first(last)

    def gates(self, x: Tensor) -> Tensor:
        """Compute W x + b, the input part of the gates of the first layer, for all steps at once.

        x: (B, T, input_size). The result has shape (B, T, G), where G is the size of all gates together. If
            the layers have hooks, it is x, because advance() then calls the layers.
        """
        if is_hooked(self.layers):
            return x  # advance() calls the layers
        weights = self.layers.all_weights[0]
        return linear(x, weights[0][:, : self.input_size], weights[2])

    def advance(self, gates: Tensor, feed: Tensor | None, hidden: Hidden) -> tuple[Hidden, Tensor]:
        """Compute one step; return the next state and the output (B, width).

        gates: (B, G), the result of gates() at this step.
        feed: (B, feed_size), the extra input; None if feed_size is 0.
        hidden: the previous state.
        """
        if is_hooked(self.layers):
            inputs = gates if feed is None else torch.cat((gates, feed), -1)
            outputs, hidden = self.run(inputs[:, None], hidden)
            return hidden, outputs[:, 0]
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

    def _batch_first(self, last: Tensor | tuple[Tensor, Tensor]) -> Hidden:
        return tuple(each.transpose(0, 1) for each in (last if isinstance(last, tuple) else (last,)))


def _to_float32(x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden, AbstractContextManager[object]]:
    """Return x, the state and a context manager that disables CUDA autocast.

    Under CUDA autocast, the tensors are converted to float32, and the context manager disables autocast.
    Otherwise cuDNN would use float16, in which small gradients underflow. Without autocast, the tensors are
    returned unchanged, with a context manager that does nothing.
    """
    if x.device.type != "cuda" or not autocast_on("cuda"):
        return x, hidden, nullcontext()
    return x.float(), tuple(each.float() for each in hidden), torch.autocast("cuda", enabled=False)


def flip(sequences: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first lengths[b] elements of each sequence b, and leave the padding in place.

    sequences: (B, S, ...).
    lengths: (B,).

    >>> flip(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2]))
    tensor([[3, 2, 1],
            [5, 4, 0]])
    """
    if in_transform() or torch.compiler.is_compiling():
        return _flipped(sequences, lengths)
    return _Flip.apply(sequences, lengths)


class _Flip(torch.autograd.Function):
    """flip() with its own backward pass, because that of gather() uses atomic additions."""

    @staticmethod
    def forward(ctx: Any, sequences: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(lengths)
        return _flipped(sequences, lengths)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return flip(gradient, *ctx.saved_tensors), None


def _flipped(sequences: Tensor, lengths: Tensor) -> Tensor:
    position = torch.arange(sequences.shape[1], device=sequences.device)
    index_BS = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
    index = index_BS.reshape(*index_BS.shape, *(1 for _ in sequences.shape[2:]))
    return sequences.gather(1, index.expand_as(sequences))
