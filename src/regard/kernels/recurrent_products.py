# mypy: disable-error-code="no-untyped-def"
"""Matrix products of one step of a recurrent cell, each with the elementwise operations that follow it.

A step of a recurrent cell is a chain of small matrix products. For few sequences, such a product takes only a
few microseconds, and as much time passes between two kernels. So each kernel here computes a product and the
elementwise operations of recurrent_cells.py that read its result; its docstring contains the equations. A
program computes COLUMNS columns of the result, for all rows. These are the kernels of the gated cell;
gru_products.py contains those of the GRU.

Tensors are (rows, width) unless noted; gates_row is the row stride of `gates`, and so on. Sums are float32.
Sizes and strides are passed in units of UNIT elements. So the compiler knows that rows begin at a multiple of
16 bytes, also for sizes such as 1,000, which are not multiples of 16 elements.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.launch import multiplies_tf32
from regard.kernels.matrix_product import product
from regard.kernels.quick_launch import quick_launch

__all__ = [
    "UNIT",
    "can_multiply",
    "context_backward",
    "gates_product",
    "get",
    "options_for",
    "query_product",
    "reset_backward",
    "state_backward",
    "state_product",
    "tanh",
    "tile_of",
]

MOST_ROWS = 128
"""Maximum number of rows. For more rows, the matrix products of cuBLAS take longer than their launches."""

UNIT = tl.constexpr(8)
"""All sizes and strides are multiples of this number of elements."""

STAGE = 48 << 10
"""Bytes of shared memory that a stage of the pipeline of loads needs at most."""

COLUMNS, INNER = 32, 128
"""Number of columns of the result of a program, and number of elements of the sums that it loads at once."""


@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def tile_of(rows, width, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and the columns of a program, and which elements of the tile exist."""
    row = tl.arange(0, ROWS).to(tl.int64)
    column = first * COLUMNS + tl.arange(0, COLUMNS)
    return row[:, None], column[None, :], (row < rows)[:, None] & (column < width)[None, :]


@triton.jit
def get(pointer, places, there):
    """Load the elements at pointer + places as float32; 0 where `there` is False."""
    return tl.load(pointer + places, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _product(
    a, weight, total, row, column, rows, width, inner, a_row, weight_inner, weight_column,
    INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return total + a @ weight for the rows (ROWS, 1) and the columns (1, COLUMNS).

    a: (rows, inner). weight: (inner, width), with the strides weight_inner and weight_column.
    """
    for first in range(0, inner, INNER):
        k = first + tl.arange(0, INNER)
        x = tl.load(a + row * a_row + k[None, :], mask=(row < rows) & (k < inner)[None, :], other=0.0)
        places = k.to(tl.int64)[:, None] * weight_inner + column * weight_column
        y = tl.load(weight + places, mask=(k < inner)[:, None] & (column < width), other=0.0)
        total = product(x, y, total, PRECISION)
    return total


@quick_launch
@triton.jit
def query_product_kernel(
    state, weight, result, rows, width, inner, state_row, weight_row, result_row, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute result = state @ weight: the query of the attention, and U s for the gates z and r.

    state: reads (rows, inner). weight: reads (inner, width). result: writes (rows, width).
    """
    width, inner, state_row = width * UNIT, inner * UNIT, state_row * UNIT
    weight_row, result_row = weight_row * UNIT, result_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = _product(
        state, weight, total, row, column, rows, width, inner, state_row, weight_row, 1, INNER, PRECISION
    )
    tl.store(result + row * result_row + column, total, mask=there)


@quick_launch
@triton.jit
def gates_product_kernel(
    context, weight, gates, more, state, reset, rows, width, inner, context_row, weight_row, gates_row,
    more_row, state_row, reset_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the context to the gates of the gated cell, and compute z, r and r * s.

    z, r = sigma(gates + context C^T + more);  the last third: gates + context C^T

    context: reads (rows, inner). weight: reads C, (3 width, inner).
    gates: reads and writes (rows, 3 width). more: reads U s for z and r, (rows, 2 width).
    state: reads s. reset: writes r * s.
    """
    width, inner, context_row, weight_row = width * UNIT, inner * UNIT, context_row * UNIT, weight_row * UNIT
    gates_row, more_row, state_row, reset_row = (
        gates_row * UNIT,
        more_row * UNIT,
        state_row * UNIT,
        reset_row * UNIT,
    )
    blocks = tl.cdiv(width, COLUMNS)
    third = tl.program_id(0) // blocks  # 0: z, 1: r, 2: the candidate state
    row, column, there = tile_of(rows, width, tl.program_id(0) % blocks, ROWS, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    weight += third.to(tl.int64) * width * weight_row
    total = _product(
        context, weight, total, row, column, rows, width, inner, context_row, 1, weight_row, INNER, PRECISION
    )
    at = row * gates_row + third * width + column
    total += get(gates, at, there)
    total += get(more, row * more_row + third * width + column, there & (third < 2))
    gate = tl.sigmoid(total)
    tl.store(gates + at, tl.where(third < 2, gate, total), mask=there)
    s = get(state, row * state_row + column, there & (third == 1))
    tl.store(reset + row * reset_row + column, gate * s, mask=there & (third == 1))


@quick_launch
@triton.jit
def state_product_kernel(
    reset, weight, gates, state, after, rows, width, reset_row, weight_row, gates_row, state_row, after_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the candidate state s~ = tanh(gates + reset U^T) and the next state s + z (s~ - s).

    reset: reads r * s. weight: reads U, (width, width).
    gates: (rows, 3 width). Reads z in the first third. The last third is overwritten with s~.
    state: reads s. after: writes the next state.
    """
    width, reset_row, weight_row, gates_row = (
        width * UNIT,
        reset_row * UNIT,
        weight_row * UNIT,
        gates_row * UNIT,
    )
    state_row, after_row = state_row * UNIT, after_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = _product(
        reset, weight, total, row, column, rows, width, width, reset_row, 1, weight_row, INNER, PRECISION
    )
    at = row * gates_row + column
    new = tanh(total + get(gates, at + 2 * width, there))
    take, s = get(gates, at, there), get(state, row * state_row + column, there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(after + row * after_row + column, s + take * (new - s), mask=there)


@quick_launch
@triton.jit
def reset_backward_kernel(
    dgates, weight, gates, state, before, rows, width, dgates_row, weight_row, gates_row, state_row,
    before_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of r * s, and from it the gradients of r and of the previous state s.

    dgates: (rows, 3 width). Reads the gradient of s~ before the tanh in the last third. Writes the gradient
        of r before the sigmoid to the second third.
    weight: reads U, (width, width).
    gates: reads r in the second third. state: reads s.
    before: the gradient of s so far. The part that comes from r * s is added.
    """
    width, dgates_row, weight_row, gates_row = (
        width * UNIT,
        dgates_row * UNIT,
        weight_row * UNIT,
        gates_row * UNIT,
    )
    state_row, before_row = state_row * UNIT, before_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    last = dgates + 2 * width
    d = _product(
        last, weight, d, row, column, rows, width, width, dgates_row, weight_row, 1, INNER, PRECISION
    )
    keep = get(gates, row * gates_row + width + column, there)
    s = get(state, row * state_row + column, there)
    tl.store(dgates + row * dgates_row + width + column, d * s * keep * (1.0 - keep), mask=there)
    at = row * before_row + column
    tl.store(before + at, get(before, at, there) + d * keep, mask=there)


@quick_launch
@triton.jit
def context_backward_kernel(
    dgates, of_context, of_gate, dcontext, before, rows, width, depth, dgates_row, context_row, gate_row,
    dcontext_row, before_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradients that come from the gates to those of the context and of the previous state s.

    dgates: reads the gradients of z, r and s~ before their activation functions, (rows, 3 width).
    of_context: reads C, (3 width, depth). of_gate: reads U_z and U_r, (2 width, width).
    dcontext: reads and writes (rows, depth). before: reads and writes the gradient of s.
    """
    width, depth, dgates_row, context_row = width * UNIT, depth * UNIT, dgates_row * UNIT, context_row * UNIT
    gate_row, dcontext_row, before_row = gate_row * UNIT, dcontext_row * UNIT, before_row * UNIT
    blocks = tl.cdiv(depth, COLUMNS)
    program = tl.program_id(0)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    if program < blocks:
        row, column, there = tile_of(rows, depth, program, ROWS, COLUMNS)
        total = _product(
            dgates, of_context, total, row, column, rows, depth, 3 * width, dgates_row, context_row, 1,
            INNER, PRECISION,
        )  # fmt: skip
        at = row * dcontext_row + column
        tl.store(dcontext + at, get(dcontext, at, there) + total, mask=there)
    else:
        row, column, there = tile_of(rows, width, program - blocks, ROWS, COLUMNS)
        total = _product(
            dgates, of_gate, total, row, column, rows, width, 2 * width, dgates_row, gate_row, 1, INNER,
            PRECISION,
        )  # fmt: skip
        at = row * before_row + column
        tl.store(before + at, get(before, at, there) + total, mask=there)


@quick_launch
@triton.jit
def state_backward_kernel(
    dquery, weight, before, more, gates, state, dgates, rows, width, hidden, dquery_row, weight_row,
    before_row, more_row, gates_row, state_row, dgates_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Add the gradient that comes from the query to that of the state, then start the previous step.

    d = before + dquery W^T + more is the gradient of the state, which is the result of the previous step.

    dquery: reads (rows, hidden). weight: reads W, (width, hidden).
    before: reads the other parts of the gradient. more: reads the gradient from outside the recurrence.
    gates, state: reads z and s~, and the state s, of the previous step.
    dgates: writes the gradients of z and s~ of the previous step, before their activation functions.
    before: writes the part of the gradient of s that comes from the term (1 - z) * s.
    LAST: there is no previous step. d is written to `before`, without `more`.
    """
    width, hidden, dquery_row, weight_row = width * UNIT, hidden * UNIT, dquery_row * UNIT, weight_row * UNIT
    before_row, more_row, gates_row, state_row = (
        before_row * UNIT,
        more_row * UNIT,
        gates_row * UNIT,
        state_row * UNIT,
    )
    dgates_row = dgates_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    d = _product(
        dquery, weight, d, row, column, rows, width, hidden, dquery_row, 1, weight_row, INNER, PRECISION
    )
    before_at = row * before_row + column
    d += get(before, before_at, there)
    if LAST:
        tl.store(before + before_at, d, mask=there)
    else:
        d += get(more, row * more_row + column, there)
        at, d_at = row * gates_row + column, row * dgates_row + column
        take, new = get(gates, at, there), get(gates, at + 2 * width, there)
        s = get(state, row * state_row + column, there)
        tl.store(dgates + d_at, d * (new - s) * take * (1.0 - take), mask=there)
        tl.store(dgates + d_at + 2 * width, d * take * (1.0 - new * new), mask=there)
        tl.store(before + before_at, d * (1.0 - take), mask=there)


def can_multiply(tensor: Tensor, *sizes: int) -> bool:
    """Whether these kernels are used for a tensor (rows, ...): in half precision, for few rows.

    The interpreter uses them for float32 too.

    sizes: the sizes of all rows. They must be multiples of UNIT.
    """
    half = tensor.dtype in (torch.bfloat16, torch.float16) or interpreting()
    few = 0 < len(tensor) <= MOST_ROWS and not any(size % UNIT.value for size in sizes)
    return half and few and multiplies_tf32(tensor.device) and stages(tensor.device) > 1


@functools.cache
def stages(device: torch.device) -> int:
    """Return the number of pipeline stages that fit into the shared memory of a device, at most 4."""
    room = 4 * STAGE
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return min(4, room // STAGE)


def query_product(state: Tensor, weight: Tensor, result: Tensor) -> None:
    """Run query_product_kernel; its docstring explains the arguments."""
    (rows, inner), width = state.shape, weight.shape[1]
    _run(query_product_kernel, (state, weight, result), rows, (width, inner), width)


def gates_product(
    context: Tensor, weight: Tensor, gates: Tensor, more: Tensor, state: Tensor, reset: Tensor
) -> None:
    """Run gates_product_kernel; its docstring explains the arguments."""
    rows, width = state.shape
    sizes = width, context.shape[1]
    _run(gates_product_kernel, (context, weight, gates, more, state, reset), rows, sizes, *[width] * 3)


def state_product(reset: Tensor, weight: Tensor, gates: Tensor, state: Tensor, after: Tensor) -> None:
    """Run state_product_kernel; its docstring explains the arguments."""
    rows, width = state.shape
    _run(state_product_kernel, (reset, weight, gates, state, after), rows, (width,), width)


def reset_backward(dgates: Tensor, weight: Tensor, gates: Tensor, state: Tensor, before: Tensor) -> None:
    """Run reset_backward_kernel; its docstring explains the arguments."""
    rows, width = state.shape
    _run(reset_backward_kernel, (dgates, weight, gates, state, before), rows, (width,), width)


def context_backward(
    dgates: Tensor, of_context: Tensor, of_gate: Tensor, dcontext: Tensor, before: Tensor
) -> None:
    """Run context_backward_kernel; its docstring explains the arguments."""
    (rows, width), depth = before.shape, dcontext.shape[1]
    tensors = dgates, of_context, of_gate, dcontext, before
    _run(context_backward_kernel, tensors, rows, (width, depth), depth, width)


def state_backward(
    dquery: Tensor, weight: Tensor, before: Tensor, step: tuple[Tensor, Tensor, Tensor, Tensor] | None
) -> None:
    """Run state_backward_kernel; its docstring explains the arguments.

    step: more, gates, state and dgates of the previous step, or None if there is none.
    """
    rows, width = before.shape
    tensors = (dquery, weight, before, *(step or (before, before, before, before)))
    sizes = width, dquery.shape[1]
    _run(state_backward_kernel, tensors, rows, sizes, width, LAST=step is None)


def _run(
    kernel, tensors: tuple[Tensor, ...], rows: int, sizes: tuple[int, ...], *widths: int, **more: bool
) -> None:
    """Launch a kernel. Its arguments are the tensors, the rows, the sizes, and the row stride of each tensor.

    widths: numbers of columns of the results, each divided into tiles of its own.
    """
    options = options_for(tensors[0].device, rows, sum(widths))
    units = [size // UNIT.value for size in (*sizes, *(each.stride(0) for each in tensors))]
    programs = sum(triton.cdiv(width, options["COLUMNS"]) for width in widths)
    kernel[(programs,)](*tensors, rows, *units, **options, **more)


def options_for(device: torch.device, rows: int, width: int) -> dict[str, Any]:
    """Return the launch parameters for a result with `width` columns.

    A narrow result is divided into narrower tiles, so that there are enough programs.
    """
    return {
        "ROWS": max(triton.next_power_of_2(rows), 16),
        "COLUMNS": COLUMNS if width > 64 * COLUMNS else COLUMNS // 2,
        "INNER": INNER,
        "PRECISION": "widened" if interpreting() else "ieee",
        "num_warps": 4,
        "num_stages": stages(device),
    }
