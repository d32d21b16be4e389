# mypy: disable-error-code="no-untyped-def"
"""A matrix product followed by bias, ReLU and dropout, as one kernel; and its backward pass.

hidden = dropout(relu(x W^T + bias))

In the first layer of a feed-forward layer, separate kernels would write the product, and read and write it
again. The backward pass computes the gradient of x W^T + bias from the gradient of the second layer's output
in the same way: the product with the second layer's weights, then ReLU, dropout and the sums for the bias. An
element of `hidden` is positive only if both ReLU and dropout have kept it.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.kernels import interpreting
from regard.kernels.dropout import kept, limit
from regard.kernels.matrix_product import product
from regard.kernels.training.partial_sums import sum_over_rows

__all__ = ["activated_product", "activated_product_gradient"]

ROWS, COLUMNS, DEPTH = 128, 128, 64
"""Size of the tile of a program, and of the part of the inner dimension that it multiplies at a time."""

GROUP = 8
"""Number of consecutive programs whose tiles have the same columns, so that they read the same weights from
the L2 cache."""

OPTIONS = {"num_warps": 4, "num_stages": 3}
"""With these options, two programs run on a multiprocessor at once: one multiplies while the other stores."""


@triton.jit
def _tile(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """Return the first row and the first column of the tile of this program."""
    program = tl.program_id(0)
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    first = program // (GROUP * across) * GROUP
    size = tl.minimum(down - first, GROUP)
    place = program % (GROUP * across)
    return (first + place % size) * ROWS, place // size * COLUMNS


@triton.jit(do_not_specialize=["limit", "rows"])
def activated_product_kernel(
    x, weight, bias, seed, hidden, limit, factor, rows, columns, width, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of hidden = dropout(relu(x weight^T + bias)).

    x, weight: descriptors, read (rows, width) and (columns, width). bias: reads (columns,).
    hidden: a descriptor, writes (rows, columns).
    limit: see kept(). factor: 1 / (1 - dropout).
    """
    top, left = _tile(rows, columns, ROWS, COLUMNS, GROUP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, width, DEPTH):
        total = product(x.load([top, k]), weight.load([left, k]).T, total, PRECISION)
    row, column = top + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
    total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if DROPOUT:
        # For tl.where(kept(...), total * factor, 0.0), the compiler would select in half precision, which is
        # slower.
        total = tl.where(kept(seed, limit, row, column), total, 0.0) * factor
    hidden.store([top, left], total.to(hidden.dtype))


@triton.jit(do_not_specialize=["rows"])
def activated_product_backward_kernel(
    dresult, weight, hidden, dsum, parts, factor, rows, columns, width, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient of x W^T + bias, for result = hidden weight^T.

    dresult, weight, hidden: descriptors, read (rows, width), (width, columns) and (rows, columns).
    dsum: a descriptor, writes the gradient, (rows, columns).
    parts: writes the sums of the columns of the tile, (tiles in a column, columns).
    """
    top, left = _tile(rows, columns, ROWS, COLUMNS, GROUP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, width, DEPTH):
        total = product(dresult.load([top, k]), weight.load([k, left]), total, PRECISION)
    total = tl.where(hidden.load([top, left]) > 0.0, total * factor, 0.0)
    dsum.store([top, left], total.to(dsum.dtype))
    column = left + tl.arange(0, COLUMNS)
    into = parts + (top // ROWS).to(tl.int64) * columns + column
    tl.store(into, tl.sum(total, 0), mask=column < columns)


def activated_product(x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
    """Return dropout(relu(x weight^T + bias)), (rows, columns), in the dtype of x.

    x, weight: (rows, width) and (columns, width), contiguous. bias: (columns,).
    seed: the seed of dropout, or None if dropout is 0.

    Rows must begin at multiples of 16 bytes: in half precision, width and columns are multiples of 8.
    """
    (rows, width), columns = x.shape, len(weight)
    hidden = x.new_empty(rows, columns)
    activated_product_kernel[_grid(rows, columns)](
        _tiled(x, ROWS, DEPTH), _tiled(weight, COLUMNS, DEPTH), bias, bias if seed is None else seed,
        _tiled(hidden, ROWS, COLUMNS), limit(dropout), _factor(dropout), rows, columns, width,
        DROPOUT=seed is not None, **_constants(x), **OPTIONS,
    )  # fmt: skip
    return hidden


def activated_product_gradient(
    dresult: Tensor, weight: Tensor, hidden: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x W^T + bias and of bias, for hidden = activated_product(...).

    dresult: the gradient of hidden weight^T, (rows, width). weight: (width, columns). Both are contiguous.
    The gradient of the bias is float32.
    """
    (rows, width), columns = dresult.shape, weight.shape[1]
    dsum = torch.empty_like(hidden)
    parts = dsum.new_empty(triton.cdiv(rows, ROWS), columns, dtype=torch.float32)
    activated_product_backward_kernel[_grid(rows, columns)](
        _tiled(dresult, ROWS, DEPTH), _tiled(weight, DEPTH, COLUMNS), _tiled(hidden, ROWS, COLUMNS),
        _tiled(dsum, ROWS, COLUMNS), parts, _factor(dropout), rows, columns, width, **_constants(dresult),
        **OPTIONS,
    )  # fmt: skip
    return dsum, sum_over_rows(parts)


def _grid(rows: int, columns: int) -> tuple[int]:
    return (triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)


def _tiled(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor to load or store a matrix in tiles, which may extend beyond its edges."""
    return TensorDescriptor.from_tensor(tensor, [rows, columns])


def _constants(tensor: Tensor) -> dict[str, Any]:
    precision = "widened" if interpreting() else "ieee"
    return {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH, "GROUP": GROUP, "PRECISION": precision}


def _factor(dropout: float) -> float:
    """Return the factor by which dropout multiplies the elements that it keeps."""
    return 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
