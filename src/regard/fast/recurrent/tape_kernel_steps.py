"""Run all steps of a neural Turing machine with Triton kernels. tape_steps.py uses this module on a GPU.

In the forward pass, a step launches four kernels: two matrix products, one kernel for the controller, and one
for the tape. The backward pass of a step also launches four kernels. In plain PyTorch, a step launches about
40 kernels in the forward pass and 60 in the backward pass. Dimensions: Z models, T steps, B sequences. There
are E = Z * B tapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.fast.recurrent.tape_buffers import Saved, flat, summed
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

__all__ = ["kernel_backward", "kernel_forward", "tape_layout"]


def kernel_forward(
    layout: HeadLayout,
    inputs: Tensor,
    recurrent: Tensor,
    to_heads: Tensor,
    head_bias: Tensor,
    *state: Tensor,
) -> tuple[Tensor, ...]:
    """Compute the forward pass of machine_steps(). The arguments are the same, but `state` is unpacked.

    Returns the fields of MachineSteps, then the fields of Saved. Two fields of Saved differ: `cells` contains
    [h_t; c_t], and `lengths` and `scores` are empty. The backward pass computes lengths and scores again.
    """
    hidden, cell, read, weights, memory = state
    (models, batch, steps, gates), width, columns = inputs.shape, hidden.shape[-1], read.shape[-1]
    lstm, slots, heads = gates == 4 * width, memory.shape[2], layout.heads

    def buffer(*sizes: int, more: int = 0) -> Tensor:
        return inputs.new_empty(steps + more, models, batch, *sizes)

    # Row t of `joined` is [r; h; c] before step t. r and h are adjacent, so one matrix product can read both.
    joined = buffer(columns + 2 * width, more=1)
    torch.cat((read, hidden, cell), -1, out=joined[0])
    gates_TZBG = inputs.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
    content, gated, logs, own = (buffer(heads, slots) for _ in range(4))
    parts, memories, raw = buffer(layout.size), buffer(slots, layout.width, more=1), buffer(layout.size)[0]
    memories[0].copy_(memory)
    before, bias, heads_layout = flat(weights).contiguous(), head_bias.contiguous(), tape_layout(layout)
    for t in range(steps):
        now, after = joined[t], joined[t + 1]
        gates_TZBG[t].baddbmm_(now[..., : recurrent.shape[1]], recurrent)
        if lstm:
            lstmn.cell(flat(gates_TZBG[t]), flat(now[..., columns:]), None, flat(after[..., columns:]))
        else:
            torch.tanh(gates_TZBG[t], out=after[..., columns : columns + width])
        torch.bmm(after[..., columns : columns + width], to_heads, out=raw)
        turing_machine.tape_step(
            heads_layout, flat(raw), bias, flat(parts[t]), before, flat(memories[t]), flat(content[t]),
            flat(gated[t]), flat(logs[t]), flat(own[t]), flat(memories[t + 1]), flat(after[..., :columns]),
        )  # fmt: skip
        before = flat(own[t])
    empty = inputs.new_empty(steps, models, batch, 0)
    reads_TZBR, hidden_TZBC, cells_TZBC = joined[1:].split((columns, width, width), -1)
    controller = (gates_TZBG, joined[1:, ..., columns:]) if lstm else (empty, empty)
    saved = Saved(
        *controller, hidden_TZBC, reads_TZBR, parts, empty, empty, content, gated, logs, own, memories
    )
    outputs = hidden_TZBC.permute(1, 2, 0, 3).clone(), reads_TZBR.permute(1, 2, 0, 3).clone()
    last_cell = cells_TZBC[-1].clone() if lstm else cell.clone()
    return *outputs, last_cell, own[-1].clone(), memories[-1].clone(), *(each.movedim(0, 1) for each in saved)


def kernel_backward(
    layout: HeadLayout, gradients: Sequence[Tensor], inputs: Sequence[Tensor], buffers: Saved
) -> tuple[Tensor, ...]:
    """Compute the backward pass of machine_steps(): the gradients of its tensor arguments, in their order.

    gradients: the gradients of the fields of MachineSteps.
    inputs: the arguments of machine_steps() that follow `inputs`. The tensors of `state` are separate
        elements.
    buffers: the fields of Saved from kernel_forward().
    """
    recurrent, to_heads, _, hidden0, cell0, read0, weights0, _ = inputs
    saved = Saved(*(each.movedim(1, 0) for each in buffers))  # T first
    dhidden_ZBTC, dreads_ZBTR, dcell, dweights_ZBHN, dmemory_ZBNM = gradients
    steps, models, batch, width = saved.hidden.shape
    lstm, columns, fed = saved.gates.shape[-1] > 0, saved.reads.shape[-1], recurrent.shape[1]
    # Row t of `dstate` is the gradient of [r; h; c] before step t.
    dstate = hidden0.new_zeros(steps + 1, models, batch, columns + 2 * width)
    dstate[1:, ..., :columns] = dreads_ZBTR.permute(2, 0, 1, 3)
    dstate[1:, ..., columns : columns + width] = dhidden_ZBTC.permute(2, 0, 1, 3)
    dstate[-1, ..., columns + width :] = dcell
    dgates = hidden0.new_empty(steps, models, batch, recurrent.shape[-1])
    dparts = torch.empty_like(saved.parts, memory_format=torch.contiguous_format)
    dweights, dmemory = (
        flat(each).clone(memory_format=torch.contiguous_format) for each in (dweights_ZBHN, dmemory_ZBNM)
    )
    to_recurrent, from_heads = recurrent.transpose(1, 2), to_heads.transpose(1, 2)
    first_weights, first = flat(weights0).contiguous(), torch.cat((hidden0, cell0), -1)
    heads_layout = tape_layout(layout)
    for t in reversed(range(steps)):
        before = flat(saved.weights[t - 1]) if t else first_weights
        dstate[t + 1].clamp_(-MOST_GRADIENT, MOST_GRADIENT)
        turing_machine.tape_step_backward(
            heads_layout, flat(saved.parts[t]), before, flat(saved.memory[t]), flat(saved.content[t]),
            flat(saved.gated[t]), flat(saved.logs[t]), flat(saved.weights[t]),
            flat(dstate[t + 1, ..., :columns]), dweights, dmemory, flat(dparts[t]),
        )  # fmt: skip
        dhidden = dstate[t + 1, ..., columns : columns + width]
        dhidden.baddbmm_(dparts[t], from_heads)
        if lstm:
            states = flat(saved.gates[t]), flat(saved.cells[t - 1] if t else first), flat(saved.cells[t])
            dvalues, dbefore = flat(dstate[t + 1, ..., columns:]), flat(dstate[t, ..., columns:])
            lstmn.cell_backward(*states, dvalues, flat(dgates[t]), dbefore, None, None)
        else:
            torch.mul(dhidden, 1 - saved.hidden[t] ** 2, out=dgates[t])
        dstate[t, ..., :fed].baddbmm_(dgates[t], to_recurrent)
    reads, hidden = (
        torch.cat((start[None], each[:-1])) for start, each in ((read0, saved.reads), (hidden0, saved.hidden))
    )
    joined = torch.cat((reads, hidden), -1) if lstm else reads
    drecurrent, dto_heads = summed(joined, dgates), summed(saved.hidden, dparts)
    dread0, dhidden0, dcell0 = (each.clone() for each in dstate[0].split((columns, width, width), -1))
    dstart = dhidden0, dcell0 if lstm else clipped_gradient(dcell), dread0
    dtape = dweights.view(weights0.shape), dmemory.view(dmemory_ZBNM.shape)
    return dgates.permute(1, 2, 0, 3).clone(), drecurrent, dto_heads, dparts.sum((0, 2)), *dstart, *dtape


def tape_layout(layout: HeadLayout) -> TapeLayout:
    """Return the layout of the heads as the kernels need it."""
    gate, beta, gamma, shift, key = (
        layout.slices[name].start for name in ("gate", "beta", "gamma", "shift", "key")
    )
    ways = layout.content, layout.location
    places, limits = (gate, beta, gamma, shift, key), (MOST_BETA, MOST_GAMMA, SMALLEST, MOST_GRADIENT)
    return TapeLayout(layout.reads, layout.writes, layout.shifts, *ways, places, *limits)
