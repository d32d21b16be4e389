"""All steps of a neural Turing machine in one autograd function, with its own backward pass.

Autograd would store every intermediate tensor of every step, and accumulate the gradients of the weights step
by step. Here, buffers for all steps are allocated once, and the backward pass computes the gradients of the
weights after its last step, with one matrix product each. All tensors have a leading dimension Z of models,
so several seeds that are stacked by torch.func.vmap run in the same loop: its batching rule only merges its
own dimension with Z. Apart from matrix products, all operations treat Z * B tapes alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.layers.tape_heads import MOST_BETA, MOST_GAMMA, SMALLEST, HeadLayout, HeadParts, around

__all__ = ["MachineSteps", "machine_steps"]


class MachineSteps(NamedTuple):
    """The result of machine_steps().

    hidden: (Z, B, T, C), the outputs of the controller. reads: (Z, B, T, R M), what was read at each step.
    cell, weights, memory: the state after the last step: (Z, B, C), (Z, B, H, N) and (Z, B, N, M).
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
    """Run a neural Turing machine over whole sequences; see Tape for the equations.

    The controller is an LSTM if `inputs` has 4 C columns for C hidden units, and a tanh layer if it has C.

    inputs: (Z, B, T, G), the input part of the gates, W x_t + b, in the order input, forget, output, new.
    recurrent: (Z, K, G), the weights of [r_{t-1}; h_{t-1}], K = R M + C; of r_{t-1} alone for a tanh layer.
    to_heads, head_bias: (Z, C, P) and (Z, P), from h_t to the parameters of the heads.
    state: h (Z, B, C), c (Z, B, C), reads (Z, B, R M), weights (Z, B, H, N), memory (Z, B, N, M).

    Double backward is not supported.
    """
    tensors = inputs, recurrent, to_heads, head_bias, *state
    return MachineSteps(*_Steps.apply(layout, *tensors)[:5])


def _merged(dims: Sequence[int | None], tensors: Sequence[Any], size: int) -> list[Any]:
    """Merge the dimension of vmap with Z. Tensors without this dimension are repeated."""
    merged: list[Any] = []
    for dim, tensor in zip(dims, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            merged.append(tensor)
        else:
            own = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            merged.append(own.flatten(0, 1))
    return merged


class _Steps(torch.autograd.Function):
    """Forward pass of machine_steps(). Its further outputs are the buffers that the backward pass needs."""

    @staticmethod
    def forward(layout: HeadLayout, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _forward(layout, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.layout = inputs[0]
        ctx.mark_non_differentiable(*output[5:])
        ctx.set_materialize_grads(False)  # zeros for all buffers would be large
        ctx.shapes = tuple(each.shape for each in output[:5])
        ctx.save_for_backward(*inputs[2:], *output[5:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        like = ctx.saved_tensors[0]
        whole = [
            like.new_zeros(shape) if each is None else each
            for each, shape in zip(gradients, ctx.shapes, strict=False)
        ]
        return None, *_StepsBackward.apply(ctx.layout, *whole, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        outputs = _Steps.apply(*_merged(in_dims, args, info.batch_size))
        return tuple(each.unflatten(0, (info.batch_size, -1)) for each in outputs), (0,) * len(outputs)


class _StepsBackward(torch.autograd.Function):
    """Backward pass of machine_steps(), a function of its own so that vmap uses its batching rule."""

    @staticmethod
    def forward(layout: HeadLayout, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _backward(layout, tensors[:5], tensors[5:13], _Saved(*tensors[13:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("machine_steps() does not support double backward")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        outputs = _StepsBackward.apply(*_merged(in_dims, args, info.batch_size))
        return tuple(each.unflatten(0, (info.batch_size, -1)) for each in outputs), (0,) * len(outputs)


class _Saved(NamedTuple):
    """The buffers of the forward pass, each (Z, T, B, ...), so that vmap can split its first dimension.

    gates: the activations of the LSTM, G columns (0 for a tanh layer).
    cells: c_t. hidden: h_t. reads: r_t.
    parts: the head parameters after their activations, P columns.
    lengths: |M(i)| before the step, N columns.
    scores, content: beta K[k, M(i)] and w_c. gated: w_g. logs: log(w~ + SMALLEST). weights: w.
    memory: M before the step.
    """

    gates: Tensor
    cells: Tensor
    hidden: Tensor
    reads: Tensor
    parts: Tensor
    lengths: Tensor
    scores: Tensor
    content: Tensor
    gated: Tensor
    logs: Tensor
    weights: Tensor
    memory: Tensor


def _flat(tensor: Tensor) -> Tensor:
    """Merge the dimensions Z and B of (Z, B, ...) without a copy where the strides allow it."""
    return tensor.flatten(0, 1)


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

    saved = _Saved(
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
        buffer(slots, layout.width),
    )
    bias_Z1P = head_bias[:, None]
    for t in range(steps):
        saved.memory[t].copy_(memory_ZBNM)
        memory_ENM = _flat(saved.memory[t])
        joined = torch.cat((read_ZBR, hidden_ZBC), -1) if lstm else read_ZBR
        opened_ZBG = torch.baddbmm(inputs[:, :, t], joined, recurrent)
        if lstm:
            cell_ZBC = _lstm_cell(opened_ZBG, cell_ZBC, saved.gates[t], saved.cells[t], saved.hidden[t])
        else:
            torch.tanh(opened_ZBG, out=saved.hidden[t])
        hidden_ZBC = saved.hidden[t]
        parts = _activate(layout, torch.baddbmm(bias_Z1P, hidden_ZBC, to_heads, out=saved.parts[t]))
        weights_EHN = _address(layout, parts, _flat(weights_ZBHN), memory_ENM, saved, t)
        weights_ZBHN = weights_EHN.view(models, batch, heads, slots)
        reads_EHM = torch.bmm(weights_EHN[:, : layout.reads], memory_ENM)
        read_ZBR = saved.reads[t].copy_(reads_EHM.view(models, batch, -1))
        memory_ZBNM = _write(layout, parts, weights_EHN, memory_ENM).view_as(memory_ZBNM)
    first = [each.movedim(0, 1) for each in saved]  # Z first
    hidden_ZBTC, reads_ZBTR = (each.transpose(1, 2) for each in (first[2], first[3]))
    last = cell_ZBC.clone(), weights_ZBHN.clone(), memory_ZBNM
    return hidden_ZBTC.clone(), reads_ZBTR.clone(), *last, *first


def _lstm_cell(opened: Tensor, before: Tensor, gates: Tensor, cell: Tensor, hidden: Tensor) -> Tensor:
    """Write the activations of the gates, c_t and h_t; return c_t."""
    width = cell.shape[-1]
    torch.sigmoid(opened[..., : 3 * width], out=gates[..., : 3 * width])
    torch.tanh(opened[..., 3 * width :], out=gates[..., 3 * width :])
    take, forget, show, new = gates.split(width, -1)
    torch.mul(forget, before, out=cell)
    cell.addcmul_(take, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(show)
    return cell


def _activate(layout: HeadLayout, values_ZBP: Tensor) -> HeadParts:
    """Apply the activation functions in place; return the head parameters, each (Z * B, ...)."""
    places = layout.slices
    values_ZBP[..., places["add"]].tanh_()
    values_ZBP[..., places["erase"].start : places["gate"].stop].sigmoid_()
    sharp = values_ZBP[..., places["beta"].start : places["gamma"].stop]
    sharp.copy_(functional.softplus(sharp))
    if layout.content:
        values_ZBP[..., places["beta"]].clamp_(max=MOST_BETA)
    if layout.location:
        values_ZBP[..., places["gamma"]].add_(1.0).clamp_(max=MOST_GAMMA)
        shift = values_ZBP[..., places["shift"]].unflatten(-1, (-1, layout.shifts))
        shift.copy_(shift.softmax(-1))
    return layout.parts(_flat(values_ZBP))


def _address(
    layout: HeadLayout, parts: HeadParts, before_EHN: Tensor, memory_ENM: Tensor, saved: _Saved, t: int
) -> Tensor:
    """Compute the weights of all heads at step t, and write the buffers; E = Z * B tapes."""
    weights_EHN = _flat(saved.weights[t])
    if parts.key is not None and parts.beta is not None:
        lengths_EN, scores_EHN = _flat(saved.lengths[t]), _flat(saved.scores[t])
        torch.linalg.vector_norm(memory_ENM, dim=-1, out=lengths_EN)
        lengths_EN.masked_fill_(lengths_EN == 0, 1.0)
        key_EHM = parts.key * (parts.beta / _key_lengths(parts.key))
        torch.bmm(key_EHM, memory_ENM.transpose(1, 2), out=scores_EHN)
        scores_EHN.div_(lengths_EN[:, None])
        content_EHN = weights_EHN if parts.shift is None else _flat(saved.content[t])
        torch.softmax(scores_EHN, -1, out=content_EHN)
        if parts.shift is None:
            return weights_EHN
        gated_EHN = _flat(saved.gated[t])
        assert parts.gate is not None
        torch.lerp(before_EHN, content_EHN, parts.gate, out=gated_EHN)
    else:
        gated_EHN = _flat(saved.gated[t]).copy_(before_EHN)
    assert parts.shift is not None and parts.gamma is not None
    logs_EHN = _flat(saved.logs[t])
    _convolve(around(gated_EHN, layout.max_shift), parts.shift, logs_EHN)
    logs_EHN.add_(SMALLEST).log_()
    return torch.softmax(logs_EHN * parts.gamma, -1, out=weights_EHN)


def _key_lengths(key_EHM: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(key_EHM, dim=-1, keepdim=True)
    return length.masked_fill(length == 0, 1.0)


def _convolve(padded: Tensor, shift: Tensor, result: Tensor) -> None:
    """result(i) = sum_q padded(i + q) shift(q)"""
    slots = result.shape[-1]
    torch.mul(padded[..., :slots], shift[..., :1], out=result)
    for place in range(1, shift.shape[-1]):
        result.addcmul_(padded[..., place : place + slots], shift[..., place : place + 1])


def _write(layout: HeadLayout, parts: HeadParts, weights_EHN: Tensor, memory_ENM: Tensor) -> Tensor:
    """Erase and add with all write heads."""
    written = memory_ENM
    for head in range(layout.writes):
        weight_EN1 = weights_EHN[:, layout.reads + head, :, None]
        written = torch.addcmul(written, written, weight_EN1 * parts.erase[:, head, None], value=-1.0)
    return torch.baddbmm(written, weights_EHN[:, layout.reads :].transpose(1, 2), parts.add)


def _backward(
    layout: HeadLayout, gradients: Sequence[Tensor], inputs: Sequence[Tensor], buffers: _Saved
) -> tuple[Tensor, ...]:
    """Return the gradients of inputs, recurrent, to_heads, head_bias and of the initial state."""
    recurrent, to_heads, _, hidden0, cell0, read0, weights0, _ = inputs
    saved = _Saved(*(each.movedim(1, 0) for each in buffers))  # T first
    dhidden_ZBTC, dreads_ZBTR, dcell, dweights_ZBHN, dmemory_ZBNM = gradients
    steps, models, batch, width = saved.hidden.shape
    lstm, columns = saved.gates.shape[-1] > 0, saved.reads.shape[-1]
    dinputs_TZBG = saved.hidden.new_empty(steps, models, batch, recurrent.shape[-1])
    dparts_TZBP = torch.empty_like(saved.parts, memory_format=torch.contiguous_format)
    dhidden, dread = torch.zeros_like(hidden0), torch.zeros_like(read0)
    dweights, dmemory = _flat(dweights_ZBHN), _flat(dmemory_ZBNM)
    to_recurrent, from_heads = recurrent.transpose(1, 2), to_heads.transpose(1, 2)
    for t in reversed(range(steps)):
        parts = layout.parts(_flat(saved.parts[t]))
        dparts = layout.parts(_flat(dparts_TZBP[t]))
        weights_EHN, memory_ENM = _flat(saved.weights[t]), _flat(saved.memory[t])
        dwrites, dmemory = _write_backward(layout, parts, dparts, weights_EHN, memory_ENM, dmemory)
        dread_EHM = _flat(dread + dreads_ZBTR[:, :, t]).unflatten(-1, (layout.reads, layout.width))
        dreads = torch.bmm(dread_EHM, memory_ENM.transpose(1, 2))
        dmemory = torch.baddbmm(dmemory, weights_EHN[:, : layout.reads].transpose(1, 2), dread_EHM)
        dweights = dweights + torch.cat((dreads, dwrites), 1)
        before = _flat(saved.weights[t - 1] if t else weights0)
        dweights, dmemory = _address_backward(
            layout, parts, dparts, before, memory_ENM, saved, t, dweights, dmemory
        )
        _activate_backward(layout, saved.parts[t], dparts_TZBP[t])
        dhidden = torch.baddbmm(dhidden + dhidden_ZBTC[:, :, t], dparts_TZBP[t], from_heads)
        if lstm:
            cells = saved.cells[t - 1] if t else cell0
            dcell = _lstm_backward(saved.gates[t], cells, saved.cells[t], dhidden, dcell, dinputs_TZBG[t])
            dread, dhidden = torch.bmm(dinputs_TZBG[t], to_recurrent).split((columns, width), -1)
        else:
            torch.mul(dhidden, 1 - saved.hidden[t] ** 2, out=dinputs_TZBG[t])
            dread, dhidden = torch.bmm(dinputs_TZBG[t], to_recurrent), torch.zeros_like(dhidden)
    reads = torch.cat((read0[None], saved.reads[:-1]))
    hidden = torch.cat((hidden0[None], saved.hidden[:-1]))
    joined = torch.cat((reads, hidden), -1) if lstm else reads
    drecurrent, dto_heads = _summed(joined, dinputs_TZBG), _summed(saved.hidden, dparts_TZBP)
    dstate = dhidden, dcell, dread, dweights.view_as(weights0), dmemory.view_as(dmemory_ZBNM)
    dinputs = dinputs_TZBG.permute(1, 2, 0, 3).clone()
    return dinputs, drecurrent, dto_heads, dparts_TZBP.sum((0, 2)), *(each.clone() for each in dstate)


def _summed(left_TZBK: Tensor, right_TZBG: Tensor) -> Tensor:
    """Return the sum over T and B of left^T right, (Z, K, G)."""
    left, right = (each.transpose(0, 1).flatten(1, 2) for each in (left_TZBK, right_TZBG))
    return torch.bmm(left.transpose(1, 2), right)


def _write_backward(
    layout: HeadLayout,
    parts: HeadParts,
    dparts: HeadParts,
    weights_EHN: Tensor,
    memory_ENM: Tensor,
    dmemory: Tensor,
) -> tuple[Tensor, Tensor]:
    """Backward pass of _write(): write the gradients of a and e, return those of weights and memory."""
    writes_EHN = weights_EHN[:, layout.reads :]
    dparts.add.copy_(torch.bmm(writes_EHN, dmemory))
    dwrites = torch.bmm(parts.add, dmemory.transpose(1, 2))
    kept = [1 - writes_EHN[:, head, :, None] * parts.erase[:, head, None] for head in range(layout.writes)]
    for head in range(layout.writes):
        dkept = dmemory * memory_ENM
        for other in range(layout.writes):
            dkept = dkept * kept[other] if other != head else dkept
        one = slice(head, head + 1)
        dparts.erase[:, one].copy_(torch.bmm(writes_EHN[:, one], dkept).neg_())
        dwrites[:, one] -= torch.bmm(parts.erase[:, one], dkept.transpose(1, 2))
    for each in kept:
        dmemory = dmemory * each
    return dwrites, dmemory


def _address_backward(
    layout: HeadLayout,
    parts: HeadParts,
    dparts: HeadParts,
    before_EHN: Tensor,
    memory_ENM: Tensor,
    saved: _Saved,
    t: int,
    dweights: Tensor,
    dmemory: Tensor,
) -> tuple[Tensor, Tensor]:
    """Backward pass of _address(): write the gradients of its parameters.

    Returns the gradients of the weights of the step before, and of the memory.
    """
    dcontent, dbefore = dweights, torch.zeros_like(dweights)
    if parts.shift is not None and parts.gamma is not None:
        logs_EHN, gated_EHN = _flat(saved.logs[t]), _flat(saved.gated[t])
        dscaled = torch._softmax_backward_data(dweights, _flat(saved.weights[t]), -1, dweights.dtype)
        torch.sum(dscaled * logs_EHN, -1, keepdim=True, out=dparts.gamma)
        dshifted = dscaled * parts.gamma * torch.exp(-logs_EHN)
        slots, padded = dshifted.shape[-1], around(gated_EHN, layout.max_shift)
        windows = padded.unfold(-1, slots, 1)  # window q: padded(i + q)
        torch.sum(windows * dshifted[:, :, None], -1, out=dparts.shift)
        dbefore = torch.empty_like(dshifted)
        _convolve(around(dshifted, layout.max_shift), parts.shift.flip(-1), dbefore)
        if parts.gate is not None:
            change = _flat(saved.content[t]) - before_EHN
            torch.sum(change * dbefore, -1, keepdim=True, out=dparts.gate)
            dcontent = dbefore * parts.gate
            dbefore = dbefore - dcontent
    if parts.key is None or parts.beta is None or dparts.beta is None:
        return dbefore, dmemory
    lengths_EN, scores_EHN = _flat(saved.lengths[t]), _flat(saved.scores[t])
    content = _flat(saved.weights[t] if parts.shift is None else saved.content[t])
    dscores = torch._softmax_backward_data(dcontent, content, -1, content.dtype)
    divided = dscores / lengths_EN[:, None]
    size = _key_lengths(parts.key)
    unit_EHM, scale = parts.key / size, parts.beta / size
    dkey = torch.bmm(divided, memory_ENM)
    torch.sum(unit_EHM * dkey, -1, keepdim=True, out=dparts.beta)
    torch.mul(torch.addcmul(dkey, unit_EHM, dparts.beta, value=-1.0), scale, out=dparts.key)
    inward_EN1 = ((dscores * scores_EHN).sum(1) / (lengths_EN * lengths_EN))[..., None]
    dmemory = torch.baddbmm(dmemory, divided.transpose(1, 2), unit_EHM * parts.beta)
    return dbefore, dmemory.addcmul_(memory_ENM, inward_EN1, value=-1.0)


def _activate_backward(layout: HeadLayout, values_ZBP: Tensor, dvalues_ZBP: Tensor) -> None:
    """Backward pass of _activate(), in place: from the gradients of its results to those of its arguments."""
    places = layout.slices
    add, opened = places["add"], slice(places["erase"].start, places["gate"].stop)
    dvalues_ZBP[..., add].mul_(1 - values_ZBP[..., add] ** 2)
    gates = values_ZBP[..., opened]
    dvalues_ZBP[..., opened].mul_(gates * (1 - gates))
    # The derivative of softplus is 1 - exp(-softplus), and 0 above the limit.
    for name, most, offset in (("beta", MOST_BETA, 0.0), ("gamma", MOST_GAMMA, 1.0)):
        values, dvalues = values_ZBP[..., places[name]], dvalues_ZBP[..., places[name]]
        if values.shape[-1]:
            dvalues.mul_(-torch.expm1(offset - values) * (values < most))
    if layout.location:
        shift, dshift = (
            each[..., places["shift"]].unflatten(-1, (-1, layout.shifts))
            for each in (values_ZBP, dvalues_ZBP)
        )
        dshift.copy_(torch._softmax_backward_data(dshift, shift, -1, shift.dtype))


def _lstm_backward(
    gates: Tensor, before: Tensor, cell: Tensor, dhidden: Tensor, dcell: Tensor, dgates: Tensor
) -> Tensor:
    """Backward pass of _lstm_cell(): write the gradients of the arguments of the gates; return dc_{t-1}."""
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
