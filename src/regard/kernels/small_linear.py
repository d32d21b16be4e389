# mypy: disable-error-code="no-untyped-def"
"""A linear layer of few rows without gradients, as one kernel that takes little time on the host.

torch's linear() takes longer on the host than a small product takes on the GPU, because it searches for the
fastest algorithm in each call. This kernel is launched by the CUDA driver directly (see direct_launch.py).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.direct_launch import DirectLaunch, direct_launch
from regard.kernels.inner_launch import precision, up
from regard.kernels.matrix_product import product

__all__ = ["small_linear", "small_linear_kernel"]

ROWS, COLUMNS = 16, 32
"""Size of the tile of a program: rows of x, and outputs."""

KEPT = 1024
"""Maximum number of kept launches. When it is reached, all are removed."""


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


_kept: dict[tuple[Any, ...], tuple[DirectLaunch, tuple[int, ...], tuple[int, ...]]] = {}
"""By signature: the launch, and the sizes and strides of its result."""

_lock = threading.Lock()


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b, (..., O), without gradients.

    x: (..., I), weight: (O, I), bias: (O,); contiguous, with one dtype, on the current CUDA device, and at
        multiples of 16 bytes.

    The launch is kept for calls with the same shapes.
    """
    device = x.get_device()
    signature = (x.shape, weight.shape, bias is None, x.dtype, device)
    kept = _kept.get(signature)
    if kept is None:
        return _launched(signature, x, weight, bias)
    direct, sizes, strides = kept
    found, slots = torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device), direct.slots
    with _lock:
        slots[0], slots[1], slots[3] = x.data_ptr(), weight.data_ptr(), found.data_ptr()
        if bias is not None:
            slots[2] = bias.data_ptr()
        direct.run(torch._C._cuda_getCurrentRawStream(device))
    return found


def _launched(signature: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of small_linear(), launched by Triton, and keep the launch."""
    outputs, inputs = weight.shape
    rows, found = x.numel() // inputs, x.new_empty((*x.shape[:-1], outputs))
    constants = {
        "BIAS": bias is not None,
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "WIDTH": min(64, up(inputs)),
        "PRECISION": "ieee" if x.dtype == torch.float32 or not interpreting() else precision(x),
    }
    grid = (-(-rows // ROWS) * -(-outputs // COLUMNS), 1, 1)
    tensors = (x, weight, weight if bias is None else bias, found)
    numbers = (rows, inputs, outputs)
    launched: Any = small_linear_kernel[grid](*tensors, *numbers, **constants, num_warps=4)
    if launched is None:  # interpreted, or only compiled
        return found
    direct = direct_launch(launched, grid, [None] * 4 + [*numbers, *constants.values()])
    if direct is not None and direct[1][:4] == [0, 1, 2, 3]:
        if len(_kept) >= KEPT:
            _kept.clear()
        _kept[signature] = direct[0], tuple(found.shape), found.stride()
    return found
