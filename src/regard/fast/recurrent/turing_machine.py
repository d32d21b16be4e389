"""FastTuringMachine: a neural Turing machine whose steps do not call attention() and read()."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.dimensions import in_transform
from regard.fast.hooks import is_hooked
from regard.fast.twin import Twin
from regard.kernels import by_kernel
from regard.layers.tape_heads import (
    MOST_BETA,
    MOST_GAMMA,
    SMALLEST,
    HeadLayout,
    TapeSite,
    clipped_gradient,
    shifted,
)
from regard.models.turing_machine import MachineState, NeuralTuringMachine
from regard.sites import scopes_at

__all__ = ["FastTuringMachine"]


class FastTuringMachine(NeuralTuringMachine, Twin):
    """Run all steps without calls of attention() and read(); on a GPU by Triton kernels (tape_steps.py)."""

    def run(self, x: Tensor, state: MachineState) -> tuple[Tensor, MachineState]:
        sites = [each for each in self.tape.values() if isinstance(each, TapeSite)]
        seen = any(scopes_at(each.site, each.role) for each in sites)
        if seen or is_hooked(self.heads) or torch.compiler.is_compiling() or in_transform():
            return NeuralTuringMachine.run(self, x, state)
        if by_kernel(x):
            from regard.fast.recurrent.tape_steps import machine_steps

            weights = self.recurrent, self.heads.weight.T, self.heads.bias
            hidden, reads, *last = machine_steps(self.layout, self.input(x), *weights, *state.tensors)
        else:
            hidden, reads, *last = _steps(self, x, state)
        logits = self.output(torch.cat((hidden, reads), -1))
        cell, tape_weights, memory = last
        position = state.position + x.shape[1]
        return logits, MachineState(hidden[:, -1], cell, reads[:, -1], tape_weights, memory, position)


def _steps(model: NeuralTuringMachine, x: Tensor, state: MachineState) -> tuple[Tensor, ...]:
    """Run all steps in PyTorch; the results are those of machine_steps(). For the equations, see Tape.

    The gradients of the state and of the head parameters are clipped at each step.
    """
    layout = model.layout
    hidden, cell, reads, weights, memory = state.tensors
    limits, outputs = _sharpness_limits(layout, x), []
    for opened in model.input(x).unbind(1):
        joined = torch.cat((reads, hidden), -1) if model.lstm else reads
        opened = torch.addmm(opened, joined, model.recurrent)
        if model.lstm:
            gates, new = opened.split((3 * model.width, model.width), -1)
            take, forget, show = torch.sigmoid(gates).split(model.width, -1)
            cell = torch.addcmul(forget * cell, take, torch.tanh(new))
            hidden = show * torch.tanh(cell)
        else:
            hidden = torch.tanh(opened)
        (raw,) = _Clipped.apply(model.heads(hidden))
        weights, memory, reads = _tape_step(layout, raw, weights, memory, limits)
        hidden, cell, reads, weights, memory = _Clipped.apply(hidden, cell, reads, weights, memory)
        outputs.append((hidden, reads))
    all_hidden, all_reads = (torch.stack(each, 1) for each in zip(*outputs, strict=True))
    return all_hidden, all_reads, cell, weights, memory


def _tape_step(
    layout: HeadLayout, raw: Tensor, weights: Tensor, memory: Tensor, limits: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one step of the tape; return the weights of all heads, the slots, and what the heads read.

    raw: the output of the controller, (B, P). Parameters with the same activation function are adjacent.
    limits: the result of _sharpness_limits().
    """
    sizes = {name: columns.stop - columns.start for name, columns in layout.slices.items()}
    opened, sharp = sizes["erase"] + sizes["gate"], sizes["beta"] + sizes["gamma"]
    groups = raw.split((sizes["add"], opened, sharp, sizes["shift"], sizes["key"]), -1)
    add, key = (each.unflatten(-1, (-1, layout.width)) for each in (torch.tanh(groups[0]), groups[4]))
    erase, gate = torch.sigmoid(groups[1]).split((sizes["erase"], sizes["gate"]), -1)
    erase, offset, most = erase.unflatten(-1, (-1, layout.width)), *limits
    sharp = torch.minimum(functional.softplus(groups[2]) + offset, most)[..., None]
    beta, gamma = sharp.split((sizes["beta"], sizes["gamma"]), 1)
    if layout.content:
        lengths, own = _lengths(memory), _lengths(key)[..., None]
        found = torch.bmm(key * (beta / own), memory.transpose(1, 2)) / lengths[:, None]
        content = found.softmax(-1)
        weights = torch.lerp(weights, content, gate[..., None]) if layout.location else content
    if layout.location:
        shift = groups[3].unflatten(-1, (-1, layout.shifts)).softmax(-1)
        weights = torch.softmax(gamma * torch.log(shifted(weights, shift) + SMALLEST), -1)
    readers, writers = weights.split((layout.reads, layout.writes), 1)
    reads = torch.bmm(readers, memory).flatten(1)
    for head in range(layout.writes):
        erased = writers[:, head, :, None] * erase[:, head, None]
        memory = torch.addcmul(memory, memory, erased, value=-1.0)
    return weights, torch.baddbmm(memory, writers.transpose(1, 2), add), reads


def _sharpness_limits(layout: HeadLayout, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is added to the softplus of beta and gamma, and their largest values; one per column."""
    ranges = ((0.0, MOST_BETA),) * layout.content + ((1.0, MOST_GAMMA),) * layout.location
    offset, most = (
        torch.cat([like.new_full((layout.heads,), each[end]) for each in ranges]) for end in (0, 1)
    )
    return offset, most


def _lengths(vectors: Tensor) -> Tensor:
    """Return the norms of vectors; 1 for a vector of zeros, because callers divide by them."""
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length.masked_fill(length == 0, 1.0)


class _Clipped(torch.autograd.Function):
    """Return tensors unchanged, and clip their gradients; one node takes less time than a hook for each."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(each.view_as(each) for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else clipped_gradient(each) for each in gradients)
