# mypy: disable-error-code="no-untyped-def"
"""zeros() and cast(), as Triton kernels.

PyTorch has the same operations. But kernels can be launched together with those before and after them (see
replay.py), which takes less time on the host.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.quick_launch import quick_launch

__all__ = ["cast", "cast_kernel", "zero_kernel", "zeros"]

BLOCK = 1024
"""Number of elements of a program."""


@quick_launch
@triton.jit
def zero_kernel(found, size, BLOCK: tl.constexpr):
    """Write 0 to all elements of a contiguous tensor."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(found + at, tl.zeros([BLOCK], found.dtype.element_ty), mask=at < size)


@quick_launch
@triton.jit
def cast_kernel(source, found, size, BLOCK: tl.constexpr):
    """Write all elements of a contiguous tensor to another one, in its dtype."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at, mask=at < size, other=0.0)
    tl.store(found + at, values.to(found.dtype.element_ty), mask=at < size)


def zeros(like: Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros on the device of `like`."""
    found = like.new_empty(sizes, dtype=dtype)
    if found.numel():
        zero_kernel[(-(-found.numel() // BLOCK),)](found, found.numel(), BLOCK=BLOCK, num_warps=4)
    return found


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a contiguous tensor in this dtype, rounded to nearest; itself if it has this dtype."""
    if tensor.dtype == dtype:
        return tensor
    found, size = tensor.new_empty(tensor.shape, dtype=dtype), tensor.numel()
    if size:
        cast_kernel[(-(-size // BLOCK),)](tensor, found, size, BLOCK=BLOCK, num_warps=4)
    return found
