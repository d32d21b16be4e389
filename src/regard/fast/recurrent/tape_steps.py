"""Run all steps of a neural Turing machine with Triton kernels, in one autograd function.

Autograd would store every intermediate tensor of every step, and accumulate the gradients of the weights step
by step. Here, buffers for all steps are allocated once, and the backward pass computes the gradients of the
weights after its last step, with one matrix product each. In the forward pass, a step launches four kernels:
two matrix products, one kernel for the controller, and one for the tape. The backward pass of a step also
launches four kernels. In plain PyTorch, a step launches about 40 kernels in the forward pass and 60 in the
backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.recurrent import lstmn, turing_machine
from regard.kernels.recurrent.turing_machine import TapeLayout
from regard.layers.tape_heads import (
    MOST_BETA,
    MOST_GAMMA,
    MOST_GRADIENT,
    SMALLEST,
    HeadLayout,
    clipped_gradient,
)

__all__ = ["machine_steps", "tape_layout"]


def machine_steps(layout: HeadLayout, inputs: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Run a neural Turing machine on B sequences of T steps; see Tape for the equations of a step.

    The controller has C hidden units. It is an LSTM if G = 4 C, and a tanh layer if G = C. There are H heads
    with P parameters in total; R of them are read heads. The tape has N slots of size M.

    inputs: (B, T, G), W x_t + b for each gate, in the order input, forget, output, new cell content.
    tensors: eight more:
        recurrent (R M + C, G), the weight matrix for [r_{t-1}; h_{t-1}]; for a tanh layer, (R M, G), the
        weight matrix for r_{t-1}; the linear layer from h_t to the head parameters, (C, P) and (P,); and the
        initial state: h (B, C), c (B, C), reads (B, R M), weights (B, H, N) and memory (B, N, M).

    Returns h_t (B, T, C) and the vectors that the heads have read (B, T, R M) at each step; and the cell
    state, the weights and the memory after the last step. Double backward is not supported.
    """
    results: tuple[Tensor, ...] = _Steps.apply(layout, inputs, *tensors)
    return results


class _Steps(torch.autograd.Function):
    """Autograd function of machine_steps()."""

    @staticmethod
    def forward(
        ctx: Any, layout: HeadLayout, inputs: Tensor, recurrent: Tensor, to_heads: Tensor, bias: Tensor,
        hidden: Tensor, cell: Tensor, read: Tensor, weights: Tensor, memory: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        (batch, steps, size), width, columns = inputs.shape, hidden.shape[1], read.shape[1]
        lstm, slots, heads = size == 4 * width, memory.shape[1], tape_layout(layout)

        def buffer(*sizes: int, more: int = 0) -> Tensor:
            return inputs.new_empty(steps + more, batch, *sizes)

        # Row t of `joined` is [r; h; c] before step t. r and h are adjacent, so one product can read both.
        joined = buffer(columns + 2 * width, more=1)
        torch.cat((read, hidden, cell), -1, out=joined[0])
        gates_TBG = inputs.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        content, gated, logs, own = (buffer(layout.heads, slots) for _ in range(4))
        parts, memories, raw = (
            buffer(layout.size),
            buffer(slots, layout.width, more=1),
            buffer(layout.size)[0],
        )
        memories[0].copy_(memory)
        first = before = weights.contiguous()
        for t in range(steps):
            now, after = joined[t], joined[t + 1]
            gates_TBG[t].addmm_(now[:, : len(recurrent)], recurrent)
            if lstm:
                lstmn.cell(gates_TBG[t], now[:, columns:], None, after[:, columns:])
            else:
                torch.tanh(gates_TBG[t], out=after[:, columns : columns + width])
            torch.mm(after[:, columns : columns + width], to_heads, out=raw)
            turing_machine.tape_step(
                heads, raw, bias, parts[t], before, memories[t], content[t], gated[t], logs[t], own[t],
                memories[t + 1], after[:, :columns],
            )  # fmt: skip
            before = own[t]
        ctx.layout, ctx.sizes = layout, (lstm, columns, width)
        ctx.save_for_backward(
            recurrent, to_heads, first, joined, gates_TBG, content, gated, logs, own, parts, memories
        )
        reads_TBR, hidden_TBC, cells_TBC = joined[1:].split((columns, width, width), -1)
        last_cell = cells_TBC[-1] if lstm else cell
        last = (each.clone() for each in (last_cell, own[-1], memories[-1]))
        return hidden_TBC.transpose(0, 1).clone(), reads_TBR.transpose(0, 1).clone(), *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        recurrent, to_heads, first, joined, gates_TBG, content, gated, logs, own, parts, memories = (
            ctx.saved_tensors
        )
        dhidden_BTC, dreads_BTR, dcell, dweights, dmemory = gradients
        (lstm, columns, width), heads = ctx.sizes, tape_layout(ctx.layout)
        here = slice(columns, columns + width)
        # Row t of `dstate` is the gradient of [r; h; c] before step t.
        dstate = torch.zeros_like(joined)
        dstate[1:, :, :columns], dstate[1:, :, here] = dreads_BTR.transpose(0, 1), dhidden_BTC.transpose(0, 1)
        dstate[-1, :, columns + width :] = dcell
        dgates, dparts = torch.empty_like(gates_TBG), torch.empty_like(parts)
        dweights, dmemory = (
            each.clone(memory_format=torch.contiguous_format) for each in (dweights, dmemory)
        )
        for t in reversed(range(len(parts))):
            down, before = dstate[t + 1], own[t - 1] if t else first
            down.clamp_(-MOST_GRADIENT, MOST_GRADIENT)
            turing_machine.tape_step_backward(
                heads, parts[t], before, memories[t], content[t], gated[t], logs[t], own[t],
                down[:, :columns], dweights, dmemory, dparts[t],
            )  # fmt: skip
            down[:, here].addmm_(dparts[t], to_heads.T)
            if lstm:
                states = gates_TBG[t], joined[t, :, columns:], joined[t + 1, :, columns:]
                lstmn.cell_backward(*states, down[:, columns:], dgates[t], dstate[t, :, columns:], None, None)
            else:
                torch.mul(down[:, here], 1 - joined[t + 1, :, here] ** 2, out=dgates[t])
            dstate[t, :, : len(recurrent)].addmm_(dgates[t], recurrent.T)
        drecurrent = _summed(joined[:-1, :, : len(recurrent)], dgates)
        dto_heads, dbias = _summed(joined[1:, :, here], dparts), dparts.sum((0, 1))
        dread, dhidden, dfirst_cell = (each.clone() for each in dstate[0].split((columns, width, width), -1))
        dstart = dhidden, dfirst_cell if lstm else clipped_gradient(dcell), dread
        dinputs = dgates.transpose(0, 1).clone()
        return None, dinputs, drecurrent, dto_heads, dbias, *dstart, dweights, dmemory


def _summed(left_TBK: Tensor, right_TBG: Tensor) -> Tensor:
    """Return the matrix product of left (transposed) and right, summed over time and batch, (K, G)."""
    return left_TBK.flatten(0, 1).T @ right_TBG.flatten(0, 1)


def tape_layout(layout: HeadLayout) -> TapeLayout:
    """Return the layout of the heads as the kernels need it."""
    gate, beta, gamma, shift, key = (
        layout.slices[name].start for name in ("gate", "beta", "gamma", "shift", "key")
    )
    ways = layout.content, layout.location
    places, limits = (gate, beta, gamma, shift, key), (MOST_BETA, MOST_GAMMA, SMALLEST, MOST_GRADIENT)
    return TapeLayout(layout.reads, layout.writes, layout.shifts, *ways, places, *limits)
