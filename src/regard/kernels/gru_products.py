# mypy: disable-error-code="no-untyped-def"
"""One step of several GRUs: the matrix product with the state and all elementwise operations in one kernel.

recurrent_products.py explains when this is faster, and the units of sizes and strides. The GRUs can be the
two directions of a bidirectional layer. All tensors have `rows` consecutive rows for each GRU.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.matrix_product import product
from regard.kernels.quick_launch import quick_launch
from regard.kernels.recurrent_products import UNIT, get, options_for, tanh, tile_of

__all__ = ["gru_product", "gru_product_backward"]


@quick_launch
@triton.jit
def gru_product_kernel(
    state, weight, bias, gates, more, after, rows, width, state_row, weight_row, gates_row, more_row,
    after_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one step of several GRUs; program_id(1) is the GRU.

    r, z = sigma(x + u)     n = tanh(x_n + r * u_n)     next state = n + z (h - n)     u = U h + b

    state, after: reads h and writes the next state, (number of GRUs * rows, width).
    weight: reads U, (number of GRUs * 3 width, width). bias: reads b, (number of GRUs, 3 width).
    gates: (number of GRUs * rows, 3 width). Reads x; overwritten with r, z and n.
    more: (number of GRUs * rows, 3 width). The last third is overwritten with u_n.
    """
    width, state_row, weight_row = width * UNIT, state_row * UNIT, weight_row * UNIT
    gates_row, more_row, after_row = gates_row * UNIT, more_row * UNIT, after_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    way = tl.program_id(1).to(tl.int64)
    state += way * rows * state_row
    weight += way * 3 * width * weight_row
    bias += way * 3 * width
    of_reset = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_keep = tl.zeros([ROWS, COLUMNS], tl.float32)
    fed = tl.zeros([ROWS, COLUMNS], tl.float32)
    step = width * weight_row
    for first in range(0, width, INNER):
        k = first + tl.arange(0, INNER)
        x = tl.load(state + row * state_row + k[None, :], mask=(row < rows) & (k < width)[None, :], other=0.0)
        into = weight + column * weight_row + k[:, None]
        inside = (k < width)[:, None] & (column < width)
        of_reset = product(x, tl.load(into, mask=inside, other=0.0), of_reset, PRECISION)
        of_keep = product(x, tl.load(into + step, mask=inside, other=0.0), of_keep, PRECISION)
        fed = product(x, tl.load(into + 2 * step, mask=inside, other=0.0), fed, PRECISION)
    row += way * rows
    at = row * gates_row + column
    across = column < width
    reset = tl.sigmoid(of_reset + get(gates, at, there) + get(bias, column, across))
    keep = tl.sigmoid(of_keep + get(gates, at + width, there) + get(bias, column + width, across))
    fed += get(bias, column + 2 * width, across)
    new = tanh(get(gates, at + 2 * width, there) + reset * fed)
    s = get(state, (row - way * rows) * state_row + column, there)
    tl.store(gates + at, reset, mask=there)
    tl.store(gates + at + width, keep, mask=there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(more + row * more_row + 2 * width + column, fed, mask=there)
    tl.store(after + row * after_row + column, new + keep * (s - new), mask=there)


@quick_launch
@triton.jit
def gru_product_backward_kernel(
    dmore, weight, before, dafter, gates, more, state, dgates, dprevious, rows, width, before_row, dafter_row,
    gates_row, more_row, state_row, dgates_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the state h of several GRUs, then the backward pass of the step before.

    d = before + dmore U + dafter is the gradient of h, which is the result of the step before. The other
    equations are those of gru_backward_kernel in recurrent_cells.py. program_id(1) is the GRU.

    dmore: reads the gradient of u, (number of GRUs, 3, rows, width), contiguous. weight: reads U, contiguous.
    before: reads the part of the gradient that comes from the term z * h, and writes that of the step before.
    dafter: reads the gradient of h from outside the recurrence.
    gates, more, state: read r, z and n; u_n, in the last third; and the state, all of the step before.
    dgates, dprevious: write the gradients of x and of u of the step before, the latter as in dmore.
    """
    width, before_row, dafter_row, gates_row = (
        width * UNIT,
        before_row * UNIT,
        dafter_row * UNIT,
        gates_row * UNIT,
    )
    more_row, state_row, dgates_row = more_row * UNIT, state_row * UNIT, dgates_row * UNIT
    row, column, there = tile_of(rows, width, tl.program_id(0), ROWS, COLUMNS)
    way = tl.program_id(1).to(tl.int64)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    blocks = tl.cdiv(width, INNER)
    for block in range(3 * blocks):
        gate = way * 3 + block // blocks
        k = block % blocks * INNER + tl.arange(0, INNER)
        x_at = gate * rows * width + row * width + k[None, :]
        x = tl.load(dmore + x_at, mask=(row < rows) & (k < width)[None, :], other=0.0)
        y_at = (gate * width + k[:, None]) * width + column
        y = tl.load(weight + y_at, mask=(k < width)[:, None] & (column < width), other=0.0)
        d = product(x, y, d, PRECISION)
    part_at = (way * 3 * rows + row) * width + column
    gate_step = rows * width
    row += way * rows
    at = row * gates_row + column
    reset, keep = get(gates, at, there), get(gates, at + width, there)
    new, fed = get(gates, at + 2 * width, there), get(more, row * more_row + 2 * width + column, there)
    s = get(state, row * state_row + column, there)
    d += get(before, row * before_row + column, there) + get(dafter, row * dafter_row + column, there)
    dnew = d * (1.0 - keep) * (1.0 - new * new)
    dkeep = d * (s - new) * keep * (1.0 - keep)
    dreset = dnew * fed * reset * (1.0 - reset)
    into = dgates + row * dgates_row + column
    tl.store(into, dreset, mask=there)
    tl.store(into + width, dkeep, mask=there)
    tl.store(into + 2 * width, dnew, mask=there)
    tl.store(dprevious + part_at, dreset, mask=there)
    tl.store(dprevious + part_at + gate_step, dkeep, mask=there)
    tl.store(dprevious + part_at + 2 * gate_step, dnew * reset, mask=there)
    tl.store(before + row * before_row + column, d * keep, mask=there)


def gru_product(
    state: Tensor, weight: Tensor, bias: Tensor, gates: Tensor, more: Tensor, after: Tensor, rows: int
) -> None:
    """Run gru_product_kernel; its docstring explains the arguments.

    rows: number of rows of each GRU.
    """
    width, options = state.shape[1], options_for(state.device, rows, state.shape[1])
    grid = triton.cdiv(width, options["COLUMNS"]), len(state) // rows
    strides = (each.stride(0) // UNIT.value for each in (state, weight, gates, more, after))
    tensors = state, weight, bias, gates, more, after
    gru_product_kernel[grid](*tensors, rows, width // UNIT.value, *strides, **options)


def gru_product_backward(
    dmore: Tensor, weight: Tensor, before: Tensor, dafter: Tensor, gates: Tensor, more: Tensor, state: Tensor,
    dgates: Tensor, dprevious: Tensor,
) -> None:  # fmt: skip
    """Run gru_product_backward_kernel; its docstring explains the arguments."""
    (_, rows, width), options = dmore.shape, options_for(dmore.device, *dmore.shape[1:])
    grid = triton.cdiv(width, options["COLUMNS"]), len(state) // rows
    strides = (each.stride(0) // UNIT.value for each in (before, dafter, gates, more, state, dgates))
    tensors = dmore, weight, before, dafter, gates, more, state, dgates, dprevious
    gru_product_backward_kernel[grid](*tensors, rows, width // UNIT.value, *strides, **options)
