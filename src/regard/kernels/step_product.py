# mypy: disable-error-code="no-untyped-def"
"""The matrix product of a recurrent step: few rows, and a weight that is the same at all steps.

Each program computes some columns of the product, summed over some of the inner elements (a "part"), so that
many programs read the weight at the same time. The kernel that reads the product adds the parts. A program
has no loop: it loads its part of the weight before it waits for the preceding kernel (see early_launch.py),
and then its part of x.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.aligned_sizes import units
from regard.kernels.early_launch import early_options, wait_for_previous
from regard.kernels.quick_launch import quick_launch

__all__ = ["LARGEST", "step_product"]

LARGEST = 128
"""Maximum number of rows of x: a program computes all rows."""

LARGE = 1 << 20
"""A weight with at least this many elements is large; see TILES."""

TILES = {False: (128, 64), True: (256, 128)}
"""Number of inner elements of a part, and number of columns of a program, for small and for large weights. A
product of Bahdanau's model then has 96 to 128 programs, which run at the same time on an NVIDIA H200."""

WARPS = 8
"""Number of warps of a program."""


@quick_launch
@triton.jit(do_not_specialize=["rows"])
def step_product_kernel(
    x, weight, out, rows, inner, outer, x_row, weight_row, UNIT: tl.constexpr, TURNED: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute OUTER columns of one part of x W^T, or of x W.

    x: reads (rows, inner). weight: reads W, (outer, inner) or, if TURNED, (inner, outer). Both have any row
        stride.
    out: writes (parts, rows, outer).
    UNIT: inner, outer and all strides are in units of this number of elements, see units().
    """
    inner, outer, x_row, weight_row = inner * UNIT, outer * UNIT, x_row * UNIT, weight_row * UNIT
    part = tl.program_id(1)
    column = tl.program_id(0) * OUTER + tl.arange(0, OUTER)
    element = part * INNER + tl.arange(0, INNER)
    row = tl.arange(0, ROWS)
    there = (element < inner)[:, None] & (column < outer)[None, :]
    if TURNED:
        w = tl.load(weight + element[:, None] * weight_row + column[None, :], mask=there, other=0.0)
    else:
        w = tl.load(weight + column[None, :] * weight_row + element[:, None], mask=there, other=0.0)
    wait_for_previous(EARLY)
    inside = (row < rows)[:, None] & (element < inner)[None, :]
    a = tl.load(x + row[:, None] * x_row + element[None, :], mask=inside, other=0.0)
    product = tl.dot(a, w, input_precision="ieee")
    at = (part * rows + row)[:, None] * outer + column[None, :]
    tl.store(out + at, product, mask=(row < rows)[:, None] & (column < outer)[None, :])


def step_product(x: Tensor, weight: Tensor, turned: bool = False) -> Tensor:
    """Return x W^T, or x W if `turned`, as P parts whose sum is the product, (P, rows, columns).

    x: (rows, inner), with at most LARGEST rows. weight: W, (columns, inner) or, if `turned`,
        (inner, columns). Only the last dimension must be contiguous.
    """
    (rows, inner), outer = x.shape, weight.shape[1 if turned else 0]
    tile, columns = TILES[inner * outer >= LARGE]
    parts = triton.cdiv(inner, tile)
    out = x.new_empty(parts, rows, outer)
    step_product_kernel[(triton.cdiv(outer, columns), parts)](
        x, weight, out, rows, *units((inner, outer, x.stride(0), weight.stride(0))), TURNED=turned,
        ROWS=max(triton.next_power_of_2(rows), 16), INNER=tile, OUTER=columns, num_warps=WARPS,
        **early_options(True),
    )  # fmt: skip
    return out
