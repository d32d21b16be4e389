# mypy: disable-error-code="no-untyped-def"
"""Copy rows into a tensor with another dtype and other row strides, in one kernel.

PyTorch takes several kernels to append columns, and reads rows that are not adjacent with small loads.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.recurrent.cells import units

__all__ = ["copy_rows"]

ROWS, COLUMNS = 4, 512
"""Size of the tile of a program."""


@triton.jit(do_not_specialize=["source_outer", "source_row", "rows", "inner"])
def row_copy_kernel(
    source, factor, target, width, wide, source_outer, source_row, target_row, rows, inner,
    UNIT: tl.constexpr, FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy a tile of `source` (rows / inner, inner, width) to `target` (rows, wide), in float32 arithmetic.

    The columns from `width` to `wide` are set to 0. source_outer, source_row: the strides of the source.

    factor: if FACTOR is True, reads a number that all elements are multiplied by.
    UNIT: widths and strides are in units of this number of elements, see cells.units().
    """
    width, wide = width * UNIT, wide * UNIT
    source_outer, source_row, target_row = source_outer * UNIT, source_row * UNIT, target_row * UNIT
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < rows)[:, None]
    at = (row // inner * source_outer + row % inner * source_row)[:, None] + column[None, :]
    value = tl.load(source + at, mask=there & (column < width)[None, :], other=0.0).to(tl.float32)
    if FACTOR:
        value *= tl.load(factor).to(tl.float32)
    into = row[:, None] * target_row + column[None, :]
    tl.store(target + into, value, mask=there & (column < wide)[None, :])


def copy_rows(source: Tensor, target: Tensor, factor: Tensor | None = None) -> None:
    """Write the rows of `source` to the first columns of `target`, in its dtype, and 0 to the other columns.

    source, target: (N, C) or (L, N / L, C), and (N, D), D >= C. The last dimension must be contiguous.
    factor: a tensor without dimensions; all results are multiplied by it.
    """
    source = source if source.dim() == 3 else source[None]
    (rows, wide), (_, inner, width) = target.shape, source.shape
    if not target.numel():
        return
    *sizes, unit = units((width, wide, *source.stride()[:2], target.stride(0)))
    row_copy_kernel[(triton.cdiv(rows, ROWS), triton.cdiv(wide, COLUMNS))](
        source, source if factor is None else factor, target, *sizes, rows, inner, unit,
        FACTOR=factor is not None, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
