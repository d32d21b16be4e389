"""FastBahdanau: all decoder steps of Bahdanau et al. (2014) in one autograd function, in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on, full_precision, in_transform
from regard.fast.aligned_linear import padded_linear, pads
from regard.fast.hooks import are_plain_linear, is_hooked
from regard.fast.recurrent.attentive_steps_cpu import CpuSteps, suits_cpu_steps
from regard.fast.recurrent.attentive_steps_cuda import CudaSteps, suits_cuda_steps
from regard.fast.twin import Twin
from regard.kernels import by_kernel
from regard.layers.gated_cell import GatedCell
from regard.masks.constructors import padding
from regard.memory import Memory
from regard.models.bahdanau import Bahdanau, Maxout
from regard.models.base import Encoded, State
from regard.scores import Additive
from regard.select import Soft
from regard.sites import scopes_at

__all__ = ["FastBahdanau", "attend_along"]


class FastBahdanau(Bahdanau, Twin):
    """Run all decoder steps of whole targets in training without one attention() call per step.

    On a CPU, a training step takes 0.6 times as long (attentive_steps_cpu.py). On CUDA, the steps call the
    kernels of additive attention (attentive_steps_cuda.py). Double backward raises an error.
    """

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """The score must be additive with one head, and the selection softmax, as in Bahdanau et al."""
        if type(module.score) is not Additive or module.score.heads:
            return [f"the score is {module.score}"]
        if module.select != Soft():
            return [f"the selection is {module.select}"]
        layers = (module.cell.context, module.cell.gate, module.cell.state)
        return [] if are_plain_linear(layers) else ["a linear layer of the cell has hooks, or was replaced"]

    def decode(
        self, embedded_RTM: Tensor, state_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor]:
        steps = _all_steps(self, embedded_RTM, state_RM, position, encoded)
        return Bahdanau.decode(self, embedded_RTM, state_RM, position, encoded) if steps is None else steps

    def remember(self, states: Tensor, lengths: Tensor | None = None, values: Tensor | None = None) -> Memory:
        trains = self.training and torch.is_grad_enabled() and by_kernel(states)
        if not trains or lengths is None or values is not None or type(self.score) is not Additive:
            return Bahdanau.remember(self, states, lengths, values)
        # The states of the padding are finite. So they need no copy in which they are replaced by 0.
        mask = padding(lengths).to(states.device)
        return Memory(self.score.project_key(states), states, self.score, mask, states.shape[-1])

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        pairs, trains = self.readout.pairs, self.training and torch.is_grad_enabled() and tokens.numel() > 0
        if not (trains and pads(pairs.weight, pairs.weight) and _is_plain(self.readout)):
            return Bahdanau.features(self, state, tokens, encoded)
        embedded_RTM = self.dropout(self.target(tokens))
        states_RTM, contexts_RTE = self.decode(embedded_RTM, state.hidden[0], state.position, encoded)
        after = State(state.position + tokens.shape[1], (states_RTM[:, -1],))
        inputs, dtype = (states_RTM, contexts_RTE, embedded_RTM), torch.get_autocast_dtype("cuda")
        pairs_RTM = padded_linear(inputs, pairs.weight, pairs.bias, dtype)
        return after, self.readout.dropout(_PairMaximum.apply(pairs_RTM))


def _is_plain(readout: Maxout) -> bool:
    return type(readout) is Maxout and not is_hooked(readout) and not is_hooked(readout.pairs)


class _PairMaximum(torch.autograd.Function):
    """pairs.unflatten(-1, (-1, 2)).amax(-1), with fewer kernels in the backward pass.

    The larger element of a pair gets the gradient. Equal elements get half of it each, as with amax().
    """

    @staticmethod
    def forward(ctx: Any, pairs: Tensor) -> Tensor:
        ctx.save_for_backward(pairs)
        return torch.maximum(pairs[..., ::2], pairs[..., 1::2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (pairs,) = ctx.saved_tensors
        half = 0.5 * d
        difference = (pairs[..., ::2] - pairs[..., 1::2]).sign_().mul_(half)
        return torch.stack((half + difference, half - difference), -1).flatten(-2)


def _all_steps(
    model: Bahdanau, embedded_RTM: Tensor, state_RM: Tensor, position: int, encoded: Encoded
) -> tuple[Tensor, Tensor] | None:
    """Return the result of model.decode(), or None for calls that do not suit, such as inside record()."""
    cell, (memory,) = model.cell, encoded.memories
    if not (model.training and torch.is_grad_enabled()) or position or len(embedded_RTM) != len(encoded):
        return None
    if torch.compiler.is_compiling() or in_transform() or scopes_at(model.site, model.role):
        return None
    if type(memory.score) is not Additive or memory.score.heads or model.select != Soft():
        return None
    if is_hooked(cell):
        return None
    for layer in (cell.context, cell.gate, cell.state):
        if not isinstance(layer, nn.Linear) or is_hooked(layer):
            return None
    # In memory, time is the first dimension of the gates: the steps read them in this order.
    gates_RTG = cell.gates(embedded_RTM.transpose(0, 1)).transpose(0, 1)
    return attend_along(cell, gates_RTG, state_RM, memory)


def attend_along(
    cell: GatedCell, gates_BTG: Tensor, first_BM: Tensor, memory: Memory
) -> tuple[Tensor, Tensor] | None:
    """Run a gated cell over a sequence. At each step, the previous state attends to the memory.

    c_t = attention(s_{t-1}, memory),  s_t = cell(gates_t, s_{t-1}, c_t)

    The shapes below are for B sequences, T steps and states of size M.

    cell: the gated recurrent cell.
    gates_BTG: the input part of the gates, from cell.gates(), (B, T, 3 M).
    first_BM: the initial state s_0, (B, M).
    memory: keys and values from regard.prepare(), with an additive score function.

    Returns the states s_t (B, T, M) and the contexts c_t (B, T, E), or None if the tensors do not suit, for
    example because the mask hides all keys of a sequence. Double backward raises an error.

    >>> import regard
    >>> cell, score = GatedCell(input_size=3, width=4, context_size=5), regard.Additive(4, 5)
    >>> memory = regard.prepare(torch.randn(2, 6, 5), score=score)
    >>> states, contexts = attend_along(cell, cell.gates(torch.randn(2, 7, 3)), torch.zeros(2, 4), memory)
    >>> states.shape, contexts.shape
    (torch.Size([2, 7, 4]), torch.Size([2, 7, 5]))
    """
    score = memory.score
    assert isinstance(score, Additive) and cell.context is not None
    weights = score.vector, score.query_weight, cell.context.weight, cell.gate.weight, cell.state.weight
    tensors = gates_BTG, first_BM, memory.key, memory.value, *weights
    device, half = gates_BTG.device.type, None
    if autocast_on(device):
        half = torch.get_autocast_dtype(device)
    if device == "cpu" and suits_cpu_steps(memory, tensors, half):
        with full_precision(gates_BTG):
            return CpuSteps.apply(
                memory.mask.lengths, half, *(each.to(score.vector.dtype) for each in tensors)
            )
    if not suits_cuda_steps(memory, tensors):
        return None
    with full_precision(gates_BTG):
        return CudaSteps.apply(memory.mask.lengths, half or gates_BTG.dtype, *tensors)
