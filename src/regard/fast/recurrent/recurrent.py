"""FastRecurrent: recurrent layers over padded sequences without packing, and GRUs with their own loops."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.dimensions import autocast_on, full_precision, in_transform
from regard.fast.hooks import is_hooked
from regard.fast.recurrent.gru_cpu import gru_on_cpu
from regard.fast.recurrent.gru_cuda import gru_over_padding
from regard.fast.twin import Twin
from regard.kernels import by_kernel
from regard.layers.recurrent import Hidden, Recurrent, flip

__all__ = ["LOOPS", "FastRecurrent", "encode_padded"]

MOST_PADDING = 0.25
"""The largest share of padding in a batch for which gru_on_cpu() is used; torch's GRU skips the padding."""

CLOSED = -1e4
"""A large negative number that closes or opens a gate sigmoid(x): sigmoid(x + CLOSED) is exactly 0, and
sigmoid(x - CLOSED) is exactly 1."""


class FastRecurrent(Recurrent, Twin):
    """Recurrent layers in training, and on CUDA.

    - On a CPU, a GRU of one layer in training runs in gru_cpu.py, if there is little padding.
    - On CUDA, sequences are not packed: packing needs the lengths on the host, which would wait for the GPU
      and cannot be captured in a CUDA graph. The directions of a GRU in training run at once (gru_cuda.py).
      Dropout between layers is that of torch, which follows torch.manual_seed(), unlike that of cuDNN.
    - Inside torch.func.vmap, the layers run step by step, because vmap does not support those of torch.
    """

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        if in_transform():
            return encode_padded(self, x, lengths)
        if is_hooked(self.layers) or torch.compiler.is_compiling():
            return Recurrent.encode(self, x, lengths)
        if x.device.type != "cpu" or by_kernel(x):
            return encode_padded(self, x, lengths)
        if _suits_cpu(self, x, lengths):
            return _gru_on_cpu(self, x, lengths)
        return Recurrent.encode(self, x, lengths)

    def run(self, x: Tensor, hidden: Hidden, position: int = 0) -> tuple[Tensor, Hidden]:
        drops = x.device.type != "cpu" and self.training and self.dropout and not is_hooked(self.layers)
        if not (in_transform() or drops) or torch.compiler.is_compiling():
            return Recurrent.run(self, x, hidden, position)
        after = []
        for layer in range(self.depth):
            x = functional.dropout(x, self.dropout, self.training) if layer else x
            own = tuple(each[:, layer].contiguous() for each in hidden)
            x, last = _run_layer(self.layers, x, own, self.layers.all_weights[layer])
            after.append(last)
        return x, tuple(torch.stack(each, 1) for each in zip(*after, strict=True))


def _suits_cpu(module: Recurrent, x: Tensor, lengths: Tensor) -> bool:
    """Return whether gru_on_cpu() can run the layer, and is faster: in training, with little padding."""
    if not (module.training and torch.is_grad_enabled() and isinstance(module.layers, nn.GRU)):
        return False
    single = module.depth == 1
    dtypes = {*(each.dtype for each in module.layers.all_weights[0])}
    if not autocast_on("cpu"):
        dtypes.add(x.dtype)
    filled = int(lengths.sum()) >= (1 - MOST_PADDING) * x.shape[0] * x.shape[1] > 0
    return single and filled and dtypes in ({torch.float32}, {torch.float64})


def _gru_on_cpu(module: Recurrent, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
    half, weights = torch.get_autocast_dtype("cpu") if autocast_on("cpu") else None, module.layers.all_weights
    with full_precision(x):
        states_BSE = gru_on_cpu(x.to(weights[0][0].dtype), lengths, weights, half)
    width = module.layers.hidden_size
    final_B1M = (lengths - 1)[:, None, None].expand(-1, 1, width)
    last = [states_BSE[..., :width].gather(1, final_B1M), states_BSE[:, :1, width:]]
    return states_BSE, (torch.cat(last, 1) if module.layers.bidirectional else last[0],)


def encode_padded(module: Recurrent, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
    """Return the result of module.encode(x, lengths), computed without packing.

    The layers also run over the padding, and the states of the padding are then set to 0. For the backward
    direction, each sequence is reversed, but the padding stays at the end.
    """
    layers = module.layers
    ways = 2 if layers.bidirectional else 1
    # The directions of a GRU run at the same time.
    joint = isinstance(layers, nn.GRU) and torch.is_grad_enabled() and by_kernel(x) and x.numel() > 0
    run = gru_over_padding if joint else partial(_directions, layers)
    states, last = x, list[Hidden]()
    for layer in range(module.depth):
        if layer:
            states = functional.dropout(states, module.dropout, module.training)
        states, ended = run(states, lengths, layers.all_weights[layer * ways : (layer + 1) * ways])
        last.append(ended)
    return states, tuple(torch.cat(each, 1) for each in zip(*last, strict=True))


def _directions(
    layers: nn.RNNBase, x: Tensor, lengths: Tensor, weights: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Hidden]:
    """Run each direction of one layer; return the states of all steps, and the last ones, (B, W, M)."""
    inside_BS1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
    final_B1M = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, layers.hidden_size)
    zero = x.new_zeros(len(x), layers.hidden_size)
    first = (zero, zero) if isinstance(layers, nn.LSTM) else (zero,)
    outputs, last = list[Tensor](), list[Hidden]()
    for way, own in enumerate(weights):
        output, ended = _run_layer(layers, flip(x, lengths) if way else x, first, own, inside_BS1)
        last.append((output.gather(1, final_B1M).squeeze(1), *ended[1:]))
        outputs.append(flip(output, lengths) if way else output)
    states = torch.where(inside_BS1, torch.cat(outputs, -1) if len(weights) > 1 else outputs[0], 0.0)
    return states, tuple(torch.stack(each, 1) for each in zip(*last, strict=True))


def _run_layer(
    layers: nn.RNNBase,
    x: Tensor,
    hidden: Hidden,
    weights: Sequence[Tensor],
    inside_BS1: Tensor | None = None,
) -> tuple[Tensor, Hidden]:
    """Run one layer in one direction; return the outputs of all steps, and the state after the last step.

    inside_BS1: True for positions that are not padding. The cell state c of an LSTM does not change on other
        positions, but the hidden state h does. Default: all positions.
    """
    if isinstance(layers, nn.LSTM) and inside_BS1 is not None:
        # Add an input column that is 1 on padding and 0 elsewhere. Its weights close the input gate and open
        # the forget gate exactly (see CLOSED), so that c does not change on padding.
        width = layers.hidden_size
        closed, unchanged = x.new_full((width, 1), CLOSED), x.new_zeros(2 * width, 1)
        x = torch.cat((x, (~inside_BS1).to(x.dtype)), -1)
        wider = torch.cat((weights[0], torch.cat((closed, -closed, unchanged)).to(weights[0].dtype)), 1)
        weights = [wider, *weights[1:]]
    step, whole = LOOPS[type(layers)]
    if in_transform():
        return _step_by_step(step, x, hidden, weights)
    dtype = weights[1].dtype
    x, initial = x.to(dtype), tuple(each.to(dtype)[None] for each in hidden)
    options = (weights, True, 1, 0.0, layers.training, False, True)
    with full_precision(x), warnings.catch_warnings():
        # cuDNN warns if the weights are not one contiguous chunk of memory. The weights of one direction of
        # one layer never are, so ignore the warning.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        result = whole(x, initial if len(initial) > 1 else initial[0], *options)
    return result[0], tuple(each.squeeze(0) for each in result[1:])


def _step_by_step(step: Step, x: Tensor, hidden: Hidden, weights: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
    outputs = []
    for gates in functional.linear(x, weights[0], weights[2]).unbind(1):
        hidden = step(gates, functional.linear(hidden[0], weights[1], weights[3]), hidden)
        outputs.append(hidden[0])
    # In memory, time is the first dimension, as in the outputs of torch's layers. So dropout samples the same
    # random numbers.
    return torch.stack(outputs).transpose(0, 1), hidden


def tanh_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    """Compute one step of a tanh layer from W x + b, U h + b and the state."""
    return (torch.tanh(x_BG + u_BG),)


def gru_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    """Compute one step of a GRU from W x + b, U h + b and the state."""
    x_gates, x_new = x_BG.tensor_split((x_BG.shape[-1] // 3 * 2,), -1)
    u_gates, u_new = u_BG.tensor_split((u_BG.shape[-1] // 3 * 2,), -1)
    reset, keep = torch.sigmoid(x_gates + u_gates).chunk(2, -1)
    return (torch.lerp(torch.tanh(x_new + reset * u_new), hidden[0], keep),)


def lstm_cell(x_BG: Tensor, u_BG: Tensor, hidden: Hidden) -> Hidden:
    """Compute one step of an LSTM from W x + b, U h + b and the state."""
    take, forget, new, show = (x_BG + u_BG).chunk(4, -1)
    cell = torch.sigmoid(forget) * hidden[1] + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


Step = Callable[[Tensor, Tensor, Hidden], Hidden]
LOOPS: dict[type, tuple[Step, Callable[..., tuple[Tensor, ...]]]] = {
    nn.RNN: (tanh_cell, torch.rnn_tanh),
    nn.GRU: (gru_cell, torch.gru),
    nn.LSTM: (lstm_cell, torch.lstm),
}
"""For each class of layers, a function for one step, and the function of torch for one layer and direction
over whole sequences."""
