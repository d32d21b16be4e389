# mypy: disable-error-code="no-untyped-def"
"""Recurrent cells: the elementwise operations of one step, fused into one kernel between matrix products.

The gated cell of layers/gated_cell.py needs two kernels forward and two backward, because there is a matrix
product between its gates and its new state; the GRU of torch needs one in each direction. Arithmetic is in
float32.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["gated", "gated_backward", "gru", "gru_backward", "mixed", "mixed_backward"]

BLOCK = 256


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _place(width, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), columns, columns < width


@triton.jit
def _get(pointer, places, there):
    return tl.load(pointer + places, mask=there, other=0.0).to(tl.float32)


@triton.jit
def gated_forward_kernel(
    gates, more, state, reset, width, gates_row, more_row, state_row, reset_row, BLOCK: tl.constexpr
):
    """Write z and r to the first two thirds of gates, in place, and r * s to reset."""
    row, columns, there = _place(width, BLOCK)
    at, other = row * gates_row + columns, row * more_row + columns
    take = tl.sigmoid(_get(gates, at, there) + _get(more, other, there))
    keep = tl.sigmoid(_get(gates, at + width, there) + _get(more, other + width, there))
    s = _get(state, row * state_row + columns, there)
    tl.store(gates + at, take, mask=there)
    tl.store(gates + at + width, keep, mask=there)
    tl.store(reset + row * reset_row + columns, keep * s, mask=there)


@triton.jit
def mixed_forward_kernel(gates, state, after, width, gates_row, state_row, after_row, BLOCK: tl.constexpr):
    """Write s~ to the last third of gates, in place, and the next state s + z (s~ - s) to after."""
    row, columns, there = _place(width, BLOCK)
    at = row * gates_row + columns
    new = _tanh(_get(gates, at + 2 * width, there))
    take, s = _get(gates, at, there), _get(state, row * state_row + columns, there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(after + row * after_row + columns, s + take * (new - s), mask=there)


@triton.jit
def mixed_backward_kernel(
    parts, dstate, more, gates, state, dgates, before, width, part_step,
    parts_row, dstate_row, more_row, gates_row, state_row, dgates_row, before_row,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of z and s~ (before their activations) to dgates, and the gradient of the previous
    state through (1 - z) * s to before. The gradient of the next state is the sum of parts, dstate and more.
    """
    row, columns, there = _place(width, BLOCK)
    at, d_at = row * gates_row + columns, row * dgates_row + columns
    d = _get(dstate, row * dstate_row + columns, there) + _get(more, row * more_row + columns, there)
    for part in tl.static_range(PARTS):
        d += _get(parts, part * part_step + row * parts_row + columns, there)
    take, new = _get(gates, at, there), _get(gates, at + 2 * width, there)
    s = _get(state, row * state_row + columns, there)
    tl.store(dgates + d_at, d * (new - s) * take * (1.0 - take), mask=there)
    tl.store(dgates + d_at + 2 * width, d * take * (1.0 - new * new), mask=there)
    tl.store(before + row * before_row + columns, d * (1.0 - take), mask=there)


@triton.jit
def gated_backward_kernel(
    dreset, gates, state, dgates, before, width,
    dreset_row, gates_row, state_row, dgates_row, before_row, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of r (before the sigmoid) to dgates, given the gradient of r * s in dreset; add the
    gradient of s through r * s to before."""
    row, columns, there = _place(width, BLOCK)
    d, s = _get(dreset, row * dreset_row + columns, there), _get(state, row * state_row + columns, there)
    keep = _get(gates, row * gates_row + width + columns, there)
    tl.store(dgates + row * dgates_row + width + columns, d * s * keep * (1.0 - keep), mask=there)
    before_at = row * before_row + columns
    tl.store(before + before_at, _get(before, before_at, there) + d * keep, mask=there)


@triton.jit
def gru_forward_kernel(
    gates, more, bias, state, after, width, rows, gates_row, more_row, state_row, after_row,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write r, z and n to gates, in place; U h + b of n to the last third of more, in place; and the next
    state to after. bias: one for each GRU, which has `rows` consecutive rows."""
    row, columns, there = _place(width, BLOCK)
    at, other = row * gates_row + columns, row * more_row + columns
    bias_at = row // rows * 3 * width + columns
    reset = tl.sigmoid(_get(gates, at, there) + _get(more, other, there) + _get(bias, bias_at, there))
    keep = _get(gates, at + width, there) + _get(more, other + width, there)
    keep = tl.sigmoid(keep + _get(bias, bias_at + width, there))
    fed = _get(more, other + 2 * width, there) + _get(bias, bias_at + 2 * width, there)
    new = _tanh(_get(gates, at + 2 * width, there) + reset * fed)
    s = _get(state, row * state_row + columns, there)
    tl.store(gates + at, reset, mask=there)
    tl.store(gates + at + width, keep, mask=there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(more + other + 2 * width, fed, mask=there)
    tl.store(after + row * after_row + columns, new + keep * (s - new), mask=there)


@triton.jit
def gru_backward_kernel(
    parts, dstate, dafter, gates, more, state, dgates, dmore, before, width, rows,
    dstate_row, dafter_row, gates_row, more_row, state_row, dgates_row, before_row, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the input part to dgates, that of U h + b to dmore, and that of the previous
    state through z * h to before. The gradient of the next state is the sum of parts, dstate and dafter.
    parts and dmore: (number of GRUs, 3, rows, width)."""
    row, columns, there = _place(width, BLOCK)
    gate_step = rows * width
    part_at = (row // rows * 3 * rows + row % rows) * width + columns
    at = row * gates_row + columns
    reset, keep = _get(gates, at, there), _get(gates, at + width, there)
    new, fed = _get(gates, at + 2 * width, there), _get(more, row * more_row + 2 * width + columns, there)
    s = _get(state, row * state_row + columns, there)
    d = _get(dstate, row * dstate_row + columns, there) + _get(dafter, row * dafter_row + columns, there)
    for gate in tl.static_range(3):
        d += _get(parts, part_at + gate * gate_step, there)
    dnew = d * (1.0 - keep) * (1.0 - new * new)
    dkeep = d * (s - new) * keep * (1.0 - keep)
    dreset = dnew * fed * reset * (1.0 - reset)
    into = dgates + row * dgates_row + columns
    tl.store(into, dreset, mask=there)
    tl.store(into + width, dkeep, mask=there)
    tl.store(into + 2 * width, dnew, mask=there)
    tl.store(dmore + part_at, dreset, mask=there)
    tl.store(dmore + part_at + gate_step, dkeep, mask=there)
    tl.store(dmore + part_at + 2 * gate_step, dnew * reset, mask=there)
    tl.store(before + row * before_row + columns, d * keep, mask=there)


def gated(gates: Tensor, more: Tensor, state: Tensor, reset: Tensor) -> None:
    """The same as layers.gated_cell.gated(), as one kernel."""
    _launch(gated_forward_kernel, state, (gates, more, state, reset))


def mixed(gates: Tensor, state: Tensor, after: Tensor) -> None:
    """The same as layers.gated_cell.mixed(), as one kernel."""
    _launch(mixed_forward_kernel, state, (gates, state, after))


def mixed_backward(
    parts: Tensor, dstate: Tensor, more: Tensor, gates: Tensor, state: Tensor, dgates: Tensor
) -> Tensor:
    """The same as layers.gated_cell.mixed_backward(), as one kernel."""
    before, width = torch.empty_like(state), state.shape[1]
    tensors = (parts, dstate, more, gates, state, dgates, before)
    steps = (parts.stride(1), *(each.stride(0) for each in tensors[1:]))
    grid = len(state), triton.cdiv(width, BLOCK)
    mixed_backward_kernel[grid](
        *tensors, width, parts.stride(0), *steps, PARTS=len(parts), BLOCK=BLOCK, num_warps=4
    )
    return before


def gated_backward(dreset: Tensor, gates: Tensor, state: Tensor, dgates: Tensor, dstate: Tensor) -> None:
    """The same as layers.gated_cell.gated_backward(), as one kernel."""
    _launch(gated_backward_kernel, state, (dreset, gates, state, dgates, dstate))


def gru(gates: Tensor, more: Tensor, bias: Tensor, state: Tensor, after: Tensor, rows: int) -> None:
    """The same as layers.gru.gru(), as one kernel."""
    width = state.shape[1]
    steps = (each.stride(0) for each in (gates, more, state, after))
    grid = len(state), triton.cdiv(width, BLOCK)
    gru_forward_kernel[grid](gates, more, bias, state, after, width, rows, *steps, BLOCK=BLOCK, num_warps=4)


def gru_backward(
    parts: Tensor, dstate: Tensor, dafter: Tensor, gates: Tensor, more: Tensor, state: Tensor,
    dgates: Tensor, dmore: Tensor,
) -> Tensor:  # fmt: skip
    """The same as layers.gru.gru_backward(), as one kernel."""
    before, width = torch.empty_like(state), state.shape[1]
    steps = (each.stride(0) for each in (dstate, dafter, gates, more, state, dgates, before))
    tensors = (parts, dstate, dafter, gates, more, state, dgates, dmore, before)
    grid = len(state), triton.cdiv(width, BLOCK)
    gru_backward_kernel[grid](*tensors, width, parts.shape[1], *steps, BLOCK=BLOCK, num_warps=4)
    return before


def _launch(kernel, state: Tensor, tensors: tuple[Tensor, ...]) -> None:
    """Launch one program for each row of (B, width) and each block of BLOCK columns."""
    width = state.shape[1]
    grid = len(state), triton.cdiv(width, BLOCK)
    kernel[grid](*tensors, width, *(each.stride(0) for each in tensors), BLOCK=BLOCK, num_warps=4)
