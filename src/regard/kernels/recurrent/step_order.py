# mypy: disable-error-code="no-untyped-def"
"""Reorder the rows of a bidirectional layer: from positions of sequences to recurrent steps, or back.

The backward direction processes each sequence from its last token to its first, and then the padding.
In a sequence of length n, it processes the position p < n at step n - 1 - p.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.aligned_sizes import units

__all__ = ["add_inputs", "order_inputs", "reorder"]

BLOCK, WARPS = 1024, 4
"""Number of columns per program, and its number of warps."""


@triton.jit(do_not_specialize=["step_stride", "way_stride", "row_stride", "steps"])
def step_order_kernel(
    positions, by_step, lengths, more, width, step_stride, way_stride, row_stride, steps, UNIT: tl.constexpr,
    INTO: tl.constexpr, MASKED: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK columns of one row.

    positions: (B, S, 2, width), contiguous. by_step: (S, 2, B, width), with these strides.
    lengths: reads the number of tokens of each sequence, (B,), contiguous.
    UNIT: width and strides are in units of this number of elements, see units().
    INTO: copy from `positions` to `by_step`; otherwise from `by_step` to `positions`.
    MASKED: write 0 for the padding.
    MORE: add `more` (B, width), contiguous, to the first position of the backward direction. Only with INTO.
    """
    width, step_stride = width * UNIT, step_stride * UNIT
    way_stride, row_stride = way_stride * UNIT, row_stride * UNIT
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < width
    way, position, sequence = row % 2, row // 2 % steps, row // (2 * steps)
    length = tl.load(lengths + sequence)
    step = tl.where((way == 1) & (position < length), length - 1 - position, position)
    positions += row * width + columns
    by_step += step * step_stride + way * way_stride + sequence * row_stride + columns
    read = there
    if MASKED:
        read = there & (position < length)
    if INTO:
        value = tl.load(positions, mask=read, other=0.0)
        if MORE:
            adds = read & (way == 1) & (position == 0)
            value += tl.load(more + sequence * width + columns, mask=adds, other=0.0)
        tl.store(by_step, value, mask=there)
    else:
        tl.store(positions, tl.load(by_step, mask=read, other=0.0), mask=there)


@triton.jit
def _step(sequence, position, lengths):
    """Return the step at which the backward direction processes a position."""
    length = tl.load(lengths + sequence)
    return tl.where(position < length, length - 1 - position, position)


@triton.jit(do_not_specialize=["batch_stride", "row_stride", "batch", "steps"])
def input_order_kernel(
    x, by_step, lengths, width, wide, batch_stride, row_stride, batch, steps, UNIT: tl.constexpr,
    INTO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK columns of one row for both directions, or add those of both directions.

    x: (B, S, width), with these strides. by_step: (2, S, B, wide), contiguous. The columns from `width` on
        are written with 0, and not read.
    lengths: reads the number of tokens of each sequence, (B,), contiguous.
    UNIT: widths and strides are in units of this number of elements, see units().
    INTO: copy from x to by_step; otherwise add the rows of by_step and write them to x.
    """
    width, wide = width * UNIT, wide * UNIT
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sequence, position = row // steps, row % steps
    step = _step(sequence, position, lengths)
    x += sequence * batch_stride * UNIT + position * row_stride * UNIT + columns
    first = by_step + (position * batch + sequence) * wide + columns
    second = by_step + ((steps + step) * batch + sequence) * wide + columns
    if INTO:
        value = tl.load(x, mask=columns < width, other=0.0)
        tl.store(first, value, mask=columns < wide)
        tl.store(second, value, mask=columns < wide)
    else:
        there = columns < width
        value = tl.load(first, mask=there, other=0.0).to(tl.float32)
        tl.store(x, value + tl.load(second, mask=there, other=0.0).to(tl.float32), mask=there)


def order_inputs(x: Tensor, by_step: Tensor, lengths: Tensor) -> None:
    """Copy rows as layers.bidirectional_gru.order_inputs() does; its docstring explains the arguments."""
    _order_inputs(x, by_step, lengths, True)


def add_inputs(by_step: Tensor, x: Tensor, lengths: Tensor) -> None:
    """Add rows as layers.bidirectional_gru.add_inputs() does; its docstring explains the arguments."""
    _order_inputs(x, by_step, lengths, False)


def _order_inputs(x: Tensor, by_step: Tensor, lengths: Tensor, into: bool) -> None:
    (batch, steps, width), wide = x.shape, by_step.shape[3]
    *sizes, unit = units((width, wide, *x.stride()[:2]))
    input_order_kernel[(batch * steps, triton.cdiv(wide, BLOCK))](
        x, by_step, lengths, *sizes, batch, steps, unit, INTO=into, BLOCK=BLOCK, num_warps=WARPS
    )


def reorder(
    positions: Tensor, by_step: Tensor, lengths: Tensor, into: bool, masked: bool, more: Tensor | None = None
) -> None:
    """Copy rows as layers.bidirectional_gru.reorder() does; its docstring explains the arguments."""
    batch, steps, ways, width = positions.shape
    *sizes, unit = units((width, *by_step.stride()[:3]))
    step_order_kernel[(batch * steps * ways, triton.cdiv(width, BLOCK))](
        positions, by_step, lengths, positions if more is None else more, *sizes, steps, unit, INTO=into,
        MASKED=masked, MORE=more is not None, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
