"""Run all steps of a neural Turing machine in one autograd function, with a custom backward pass.

Autograd would store every intermediate tensor of every step, and accumulate the gradients of the weights step
by step. Here, buffers for all steps are allocated once, and the backward pass computes the gradients of the
weights after its last step, with one matrix product each.

The first dimension of all tensors is Z, the number of models. Only the matrix products use different weights
for each model. All other operations see one batch of Z * B tapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.fast.recurrent.tape_buffers import (
    Activations,
    Saved,
    activations,
    each_step,
    flat,
    sharpness_limits,
    step_views,
    summed,
)
from regard.kernels import by_kernel
from regard.layers.tape_heads import MOST_GRADIENT, SMALLEST, HeadLayout, HeadParts, around, clipped_gradient

__all__ = ["MachineSteps", "machine_steps"]


class MachineSteps(NamedTuple):
    """The result of machine_steps(), for Z models, B sequences and T steps.

    hidden: (Z, B, T, C), the output of the controller, with C hidden units, at each step.
    reads: (Z, B, T, R M), the vectors of size M that R read heads have read at each step.
    cell: (Z, B, C), the cell state of the controller after the last step.
    weights: (Z, B, H, N), the weights of the heads after the last step.
    memory: (Z, B, N, M), the slots of the tape after the last step.
    """

    hidden: Tensor
    reads: Tensor
    cell: Tensor
    weights: Tensor
    memory: Tensor


def machine_steps(
    layout: HeadLayout,
    inputs: Tensor,
    recurrent: Tensor,
    to_heads: Tensor,
    head_bias: Tensor,
    state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
) -> MachineSteps:
    """Run Z neural Turing machines, each on B sequences of T steps; see Tape for the equations of a step.

    The controller has C hidden units. It is an LSTM if G = 4 C, and a tanh layer if G = C. There are H heads
    with P parameters in total; R of them are read heads. The tape has N slots of size M.

    inputs: (Z, B, T, G), W x_t + b for each gate, in the order input, forget, output, new cell content.
    recurrent: (Z, R M + C, G), the weight matrix for [r_{t-1}; h_{t-1}]. For a tanh layer, (Z, R M, G), the
        weight matrix for r_{t-1}.
    to_heads, head_bias: (Z, C, P) and (Z, P), the linear layer from h_t to the head parameters.
    state: the initial state: h (Z, B, C), c (Z, B, C), reads (Z, B, R M), weights (Z, B, H, N) and memory
        (Z, B, N, M).

    Double backward is not supported.
    """
    tensors = inputs, recurrent, to_heads, head_bias, *state
    return MachineSteps(*_Steps.apply(layout, *tensors))


class _Steps(torch.autograd.Function):
    """Autograd function of machine_steps(). Its outputs are the fields of MachineSteps."""

    @staticmethod
    def forward(ctx: Any, layout: HeadLayout, *tensors: Tensor) -> tuple[Tensor, ...]:
        if by_kernel(tensors[0]):
            from regard.fast.recurrent.tape_kernel_steps import kernel_forward

            results = kernel_forward(layout, *tensors)
        else:
            results = _forward(layout, *tensors)
        ctx.layout = layout
        ctx.save_for_backward(*tensors[1:], *results[5:])
        return results[:5]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        parts = gradients, tensors[:8], Saved(*tensors[8:])
        if by_kernel(tensors[0]):
            from regard.fast.recurrent.tape_kernel_steps import kernel_backward

            return None, *kernel_backward(ctx.layout, *parts)
        return None, *_backward(ctx.layout, *parts)


def _forward(
    layout: HeadLayout,
    inputs: Tensor,
    recurrent: Tensor,
    to_heads: Tensor,
    head_bias: Tensor,
    *state: Tensor,
) -> tuple[Tensor, ...]:
    hidden_ZBC, cell_ZBC, read_ZBR, weights_ZBHN, memory_ZBNM = state
    (models, batch, steps, gates), width = inputs.shape[:4], hidden_ZBC.shape[-1]
    lstm, slots, heads = gates == 4 * width, memory_ZBNM.shape[2], layout.heads
    shape = steps, models, batch

    def buffer(*sizes: int) -> Tensor:
        return inputs.new_empty(*shape, *sizes)

    saved = Saved(
        buffer(gates if lstm else 0),
        buffer(width if lstm else 0),
        buffer(width),
        buffer(read_ZBR.shape[-1]),
        buffer(layout.size),
        buffer(slots if layout.content else 0),
        buffer(heads, slots if layout.content else 0),
        buffer(heads, slots if layout.content else 0),
        buffer(heads, slots if layout.location else 0),
        buffer(heads, slots if layout.location else 0),
        buffer(heads, slots),
        inputs.new_empty(steps + 1, models, batch, slots, layout.width),
    )
    bias_Z1P, limits = head_bias[:, None], sharpness_limits(layout, inputs)
    rows, all_parts = step_views(saved), each_step(layout, saved.parts)
    active, inputs_T = activations(layout, saved.parts), inputs.unbind(2)
    memories, weights_EHN = saved.memory.flatten(1, 2).unbind(0), flat(weights_ZBHN)
    memories[0].copy_(flat(memory_ZBNM))
    for t, (row, parts) in enumerate(zip(rows, all_parts, strict=True)):
        joined = torch.cat((read_ZBR, hidden_ZBC), -1) if lstm else read_ZBR
        opened_ZBG = torch.baddbmm(inputs_T[t], joined, recurrent)
        if lstm:
            cell_ZBC = _lstm_cell(opened_ZBG, cell_ZBC, row.gates, row.cells, row.hidden)
        else:
            torch.tanh(opened_ZBG, out=row.hidden)
        hidden_ZBC, read_ZBR = row.hidden, row.reads
        torch.baddbmm(bias_Z1P, hidden_ZBC, to_heads, out=row.parts)
        _activate(layout, active, t, limits)
        weights_EHN = _address(layout, parts, weights_EHN, row)
        reads_EHM = read_ZBR.view(models * batch, layout.reads, layout.width)
        torch.bmm(weights_EHN[:, : layout.reads], row.memory, out=reads_EHM)
        _write(layout, parts, weights_EHN, row.memory, memories[t + 1])
    first = [each.movedim(0, 1) for each in saved]  # Z first
    hidden_ZBTC, reads_ZBTR = (each.transpose(1, 2) for each in (first[2], first[3]))
    last = cell_ZBC.clone(), weights_EHN.view_as(weights_ZBHN).clone(), saved.memory[-1].clone()
    return hidden_ZBTC.clone(), reads_ZBTR.clone(), *last, *first


def _lstm_cell(opened: Tensor, before: Tensor, gates: Tensor, cell: Tensor, hidden: Tensor) -> Tensor:
    """Compute one step of the LSTM controller; return c_t.

    opened: the gates before their sigmoid or tanh.
    before: c_{t-1}.
    gates, cell, hidden: buffers, into which the activations of the gates, c_t and h_t are written.
    """
    width = cell.shape[-1]
    torch.sigmoid(opened[..., : 3 * width], out=gates[..., : 3 * width])
    torch.tanh(opened[..., 3 * width :], out=gates[..., 3 * width :])
    take, forget, show, new = gates.split(width, -1)
    torch.mul(forget, before, out=cell)
    cell.addcmul_(take, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(show)
    return cell


def _activate(layout: HeadLayout, active: Activations, t: int, limits: tuple[Tensor, Tensor]) -> None:
    """Apply the activation functions to the head parameters of step t, in place.

    limits: the result of sharpness_limits().
    """
    active.add[t].tanh_()
    active.opened[t].sigmoid_()
    offset, most = limits
    sharp = active.sharp[t]
    torch.add(functional.softplus(sharp), offset, out=sharp)
    torch.minimum(sharp, most, out=sharp)
    if layout.location:
        active.shift[t].copy_(active.shift[t].softmax(-1))


def _address(layout: HeadLayout, parts: HeadParts, before_EHN: Tensor, row: Saved) -> Tensor:
    """Return the attention weights of all heads at one step, for E = Z * B tapes.

    before_EHN: the weights at the previous step.
    row: the buffers of the step, into which the weights and intermediate results are written.
    """
    if parts.key is not None and parts.beta is not None:
        torch.linalg.vector_norm(row.memory, dim=-1, out=row.lengths)
        row.lengths.masked_fill_(row.lengths == 0, 1.0)
        key_EHM = parts.key * (parts.beta / _key_lengths(parts.key))
        torch.bmm(key_EHM, row.memory.transpose(1, 2), out=row.scores)
        row.scores.div_(row.lengths[:, None])
        if parts.shift is None:
            return torch.softmax(row.scores, -1, out=row.weights)
        torch.softmax(row.scores, -1, out=row.content)
        assert parts.gate is not None
        torch.lerp(before_EHN, row.content, parts.gate, out=row.gated)
    else:
        row.gated.copy_(before_EHN)
    assert parts.shift is not None and parts.gamma is not None
    _convolve(around(row.gated, layout.max_shift), parts.shift, row.logs)
    row.logs.add_(SMALLEST).log_()
    return torch.softmax(row.logs * parts.gamma, -1, out=row.weights)


def _key_lengths(key_EHM: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(key_EHM, dim=-1, keepdim=True)
    return length.masked_fill(length == 0, 1.0)


def _convolve(padded: Tensor, shift: Tensor, result: Tensor) -> None:
    """Shift circularly padded weights, and write into `result`: result(i) = sum_q padded(i + q) shift(q)."""
    slots = result.shape[-1]
    torch.mul(padded[..., :slots], shift[..., :1], out=result)
    for place in range(1, shift.shape[-1]):
        result.addcmul_(padded[..., place : place + slots], shift[..., place : place + 1])


def _write(
    layout: HeadLayout, parts: HeadParts, weights_EHN: Tensor, memory_ENM: Tensor, result: Tensor
) -> None:
    """Write into `result` the slots after all write heads have erased and added."""
    written, writes_ENH = memory_ENM, weights_EHN[:, layout.reads :].transpose(1, 2)
    for head in range(layout.writes):
        erased = writes_ENH[:, :, head, None] * parts.erase[:, head, None]
        written = torch.addcmul(written, written, erased, value=-1.0)
    torch.baddbmm(written, writes_ENH, parts.add, out=result)


def _backward(
    layout: HeadLayout, gradients: Sequence[Tensor], inputs: Sequence[Tensor], buffers: Saved
) -> tuple[Tensor, ...]:
    """Return the gradients of all tensors that machine_steps() takes, in the order of its arguments.

    gradients: the gradients of the fields of MachineSteps.
    inputs: the arguments of machine_steps() that follow `inputs`. The tensors of `state` are separate
        elements.
    buffers: the fields of Saved from the forward pass.
    """
    recurrent, to_heads, _, hidden0, cell0, read0, weights0, _ = inputs
    saved = Saved(*(each.movedim(1, 0) for each in buffers))  # T first
    dhidden_ZBTC, dreads_ZBTR, dcell, dweights_ZBHN, dmemory_ZBNM = gradients
    steps, models, batch, width = saved.hidden.shape
    lstm, columns = saved.gates.shape[-1] > 0, saved.reads.shape[-1]
    dinputs_TZBG = saved.hidden.new_empty(steps, models, batch, recurrent.shape[-1])
    dparts_TZBP = torch.empty_like(saved.parts, memory_format=torch.contiguous_format)
    dhidden, dread = torch.zeros_like(hidden0), torch.zeros_like(read0)
    dweights, dmemory = flat(dweights_ZBHN), flat(dmemory_ZBNM)
    to_recurrent, from_heads = recurrent.transpose(1, 2), to_heads.transpose(1, 2)
    rows, all_parts, all_dparts = (
        step_views(saved),
        *(each_step(layout, x) for x in (saved.parts, dparts_TZBP)),
    )
    values, dvalues = (activations(layout, each) for each in (saved.parts, dparts_TZBP))
    limits, dreads_T, dhidden_T = (
        sharpness_limits(layout, hidden0),
        dreads_ZBTR.unbind(2),
        dhidden_ZBTC.unbind(2),
    )
    for t in reversed(range(steps)):
        row, parts, dparts = rows[t], all_parts[t], all_dparts[t]
        dstate = dread + dreads_T[t], dhidden + dhidden_T[t], dcell, dweights, dmemory
        dread, dhidden, dcell, dweights, dmemory = (clipped_gradient(each) for each in dstate)
        dwrites, dmemory = _write_backward(layout, parts, dparts, row.weights, row.memory, dmemory)
        dread_EHM = flat(dread).unflatten(-1, (layout.reads, layout.width))
        dreads = torch.bmm(dread_EHM, row.memory.transpose(1, 2))
        dmemory.baddbmm_(row.weights[:, : layout.reads].transpose(1, 2), dread_EHM)
        dweights = dweights + torch.cat((dreads, dwrites), 1)
        before = rows[t - 1].weights if t else flat(weights0)
        dweights = _address_backward(layout, parts, dparts, before, row, dweights, dmemory)
        _activate_backward(layout, values, dvalues, t, limits)
        dparts_TZBP[t].clamp_(-MOST_GRADIENT, MOST_GRADIENT)
        dhidden = torch.baddbmm(dhidden, dparts_TZBP[t], from_heads)
        if lstm:
            cells = rows[t - 1].cells if t else cell0
            dcell = _lstm_backward(row.gates, cells, row.cells, dhidden, dcell, dinputs_TZBG[t])
            dread, dhidden = torch.bmm(dinputs_TZBG[t], to_recurrent).split((columns, width), -1)
        else:
            torch.mul(dhidden, 1 - row.hidden**2, out=dinputs_TZBG[t])
            dread, dhidden = torch.bmm(dinputs_TZBG[t], to_recurrent), torch.zeros_like(dhidden)
    reads = torch.cat((read0[None], saved.reads[:-1]))
    hidden = torch.cat((hidden0[None], saved.hidden[:-1]))
    joined = torch.cat((reads, hidden), -1) if lstm else reads
    drecurrent, dto_heads = summed(joined, dinputs_TZBG), summed(saved.hidden, dparts_TZBP)
    dstart = dhidden, dcell, dread, dweights.view_as(weights0), dmemory.view_as(dmemory_ZBNM)
    dinputs = dinputs_TZBG.permute(1, 2, 0, 3).clone()
    return dinputs, drecurrent, dto_heads, dparts_TZBP.sum((0, 2)), *(each.clone() for each in dstart)


def _write_backward(
    layout: HeadLayout,
    parts: HeadParts,
    dparts: HeadParts,
    weights_EHN: Tensor,
    memory_ENM: Tensor,
    dmemory: Tensor,
) -> tuple[Tensor, Tensor]:
    """Backward pass of _write(): return the gradients of the weights of the write heads and of memory_ENM.

    The gradients of the vectors a and e are written into `dparts`.
    """
    writes_EHN = weights_EHN[:, layout.reads :]
    dparts.add.copy_(torch.bmm(writes_EHN, dmemory))
    dwrites = torch.bmm(parts.add, dmemory.transpose(1, 2))
    erased = [writes_EHN[:, head, :, None] * parts.erase[:, head, None] for head in range(layout.writes)]
    for head in range(layout.writes):
        dkept = dmemory * memory_ENM
        for other in range(layout.writes):
            dkept = torch.addcmul(dkept, dkept, erased[other], value=-1.0) if other != head else dkept
        one = slice(head, head + 1)
        torch.neg(torch.bmm(writes_EHN[:, one], dkept), out=dparts.erase[:, one])
        dwrites[:, one].baddbmm_(parts.erase[:, one], dkept.transpose(1, 2), alpha=-1.0)
    for each in erased:
        dmemory = torch.addcmul(dmemory, dmemory, each, value=-1.0)
    return dwrites, dmemory


def _address_backward(
    layout: HeadLayout,
    parts: HeadParts,
    dparts: HeadParts,
    before_EHN: Tensor,
    row: Saved,
    dweights: Tensor,
    dmemory: Tensor,
) -> Tensor:
    """Backward pass of _address(): return the gradient of the weights at the previous step.

    The gradients of the head parameters are written into `dparts`. The gradient of the slots is added to
    `dmemory`.
    """
    dcontent, dbefore = dweights, torch.zeros_like(dweights)
    if parts.shift is not None and parts.gamma is not None:
        dscaled = torch._softmax_backward_data(dweights, row.weights, -1, dweights.dtype)
        torch.sum(dscaled * row.logs, -1, keepdim=True, out=dparts.gamma)
        dshifted = dscaled * parts.gamma * torch.exp(-row.logs)
        slots, padded = dshifted.shape[-1], around(row.gated, layout.max_shift)
        windows = padded.unfold(-1, slots, 1)  # window q: padded(i + q)
        torch.sum(windows * dshifted[:, :, None], -1, out=dparts.shift)
        dbefore = torch.empty_like(dshifted)
        _convolve(around(dshifted, layout.max_shift), parts.shift.flip(-1), dbefore)
        if parts.gate is not None:
            change = row.content - before_EHN
            torch.sum(change * dbefore, -1, keepdim=True, out=dparts.gate)
            dcontent = dbefore * parts.gate
            dbefore = dbefore - dcontent
    if parts.key is None or parts.beta is None or dparts.beta is None:
        return dbefore
    content = row.weights if parts.shift is None else row.content
    dscores = torch._softmax_backward_data(dcontent, content, -1, content.dtype)
    divided = dscores / row.lengths[:, None]
    size = _key_lengths(parts.key)
    unit_EHM, scale = parts.key / size, parts.beta / size
    dkey = torch.bmm(divided, row.memory)
    torch.sum(unit_EHM * dkey, -1, keepdim=True, out=dparts.beta)
    torch.mul(torch.addcmul(dkey, unit_EHM, dparts.beta, value=-1.0), scale, out=dparts.key)
    inward_EN1 = ((divided * row.scores).sum(1) / row.lengths)[..., None]
    dmemory.baddbmm_(divided.transpose(1, 2), unit_EHM * parts.beta)
    dmemory.addcmul_(row.memory, inward_EN1, value=-1.0)
    return dbefore


def _activate_backward(
    layout: HeadLayout, values: Activations, dvalues: Activations, t: int, limits: tuple[Tensor, Tensor]
) -> None:
    """Backward pass of _activate() for step t.

    values: the head parameters after their activation functions.
    dvalues: the gradients of `values`; overwritten with the gradients before the activation functions.
    """
    add, opened, sharp = values.add[t], values.opened[t], values.sharp[t]
    dvalues.add[t].mul_(1 - add * add)
    dvalues.opened[t].mul_(opened * (1 - opened))
    # The derivative of softplus is 1 - exp(-softplus), and 0 above the limit.
    offset, most = limits
    dvalues.sharp[t].mul_(torch.expm1(offset - sharp) * (sharp < most)).neg_()
    if layout.location:
        shift, dshift = values.shift[t], dvalues.shift[t]
        dshift.copy_(torch._softmax_backward_data(dshift, shift, -1, shift.dtype))


def _lstm_backward(
    gates: Tensor, before: Tensor, cell: Tensor, dhidden: Tensor, dcell: Tensor, dgates: Tensor
) -> Tensor:
    """Backward pass of _lstm_cell(): write the gradient of `opened` to `dgates`; return that of `before`."""
    width = cell.shape[-1]
    take, forget, show, new = gates.split(width, -1)
    dtake, dforget, dshow, dnew = dgates.split(width, -1)
    tanh = torch.tanh(cell)
    dcell = dcell + dhidden * show * (1 - tanh * tanh)
    torch.mul(dhidden, tanh, out=dshow)
    torch.mul(dcell, new, out=dtake)
    torch.mul(dcell, before, out=dforget)
    torch.mul(dcell, take, out=dnew)
    opened = gates[..., : 3 * width]
    dgates[..., : 3 * width].mul_(opened * (1 - opened))
    dnew.mul_(1 - new * new)
    return dcell * forget
