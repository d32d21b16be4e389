# mypy: disable-error-code="no-untyped-def"
"""A linear layer of few rows without gradients, as one kernel that takes little time on the host.

torch's linear() takes longer on the host than a small product takes on the GPU, because it searches for the
fastest algorithm in each call. This kernel is launched by the CUDA driver directly (see kept_launch.py).

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.inner_launch import precision, up
from regard.kernels.kept_launch import kept_launch
from regard.kernels.matrix_product import product

__all__ = ["small_linear", "small_linear_kernel"]


@triton.jit(do_not_specialize=("rows",))
def small_linear_kernel(
    x, weight, bias, found, rows, inputs, outputs,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute x W^T + b for ROWS rows and COLUMNS outputs.

    x: reads (rows, inputs). weight: reads (outputs, inputs). bias: reads (outputs,) if BIAS is True.
    found: writes (rows, outputs). Launch grid: (row tiles * output tiles,).
    """
    tiles = tl.cdiv(outputs, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, inputs, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = (channel < inputs)[None, :]
        some = tl.load(
            x + row[:, None] * inputs + channel[None, :], mask=(row < rows)[:, None] & there, other=0.0
        )
        at = weight + column[:, None] * inputs + channel[None, :]
        of_column = tl.load(at, mask=(column < outputs)[:, None] & there, other=0.0)
        total = product(some, tl.trans(of_column), total, PRECISION)
    if BIAS:
        total += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(found + row[:, None] * outputs + column[None, :], total.to(found.dtype.element_ty), mask=inside)


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b, (..., O), without gradients.

    x: (..., I), weight: (O, I), bias: (O,); contiguous, with one dtype.
    """
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    found = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    named = {
        "BIAS": bias is not None,
        "ROWS": 16,
        "COLUMNS": 32,
        "WIDTH": min(64, up(inputs)),
        "PRECISION": "ieee" if x.dtype == torch.float32 or not interpreting() else precision(x),
        "num_warps": 4,
    }
    programs = -(-rows // 16) * -(-outputs // 32)
    tensors = (x, weight, weight if bias is None else bias, found)
    kept_launch(small_linear_kernel, programs, tensors, (rows, inputs, outputs), named)
    return found
