# mypy: disable-error-code="no-untyped-def"
"""Backward pass, part 3: the gradient of the vector v, from partial sums that other kernels have written.

sum_parts() adds other partial sums with the same kernel. A sum by PyTorch takes longer on the host, because
replay.py launches kernels directly.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.quick_launch import quick_launch

__all__ = ["additive_vector_kernel", "sum_parts", "vector_gradient"]

ROWS, WIDTH = 128, 32
"""Size of the tile of a program: partial sums and channels."""


@quick_launch
@triton.jit
def additive_vector_kernel(
    partial, found, batches, parts, width, partial_batch, partial_head, partial_part,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add partial sums over the batch and the parts, and write the sum in the dtype of `found`.

    partial: reads the partial sums, (B, H, parts, D), with stride 1 in the last dimension.
    found: writes the gradient of v, (H, D).
    Launch grid: (blocks of WIDTH channels, H).
    """
    head = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = channels < width
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, batches * parts, ROWS):
        rows = first + tl.arange(0, ROWS)
        at = (rows // parts).to(tl.int64) * partial_batch + (rows % parts).to(tl.int64) * partial_part
        at = partial + head * partial_head + at[:, None] + channels[None, :]
        total += tl.load(at, mask=(rows < batches * parts)[:, None] & there[None, :], other=0.0)
    sums = tl.sum(total, 0)
    tl.store(found + head * width + channels, sums.to(found.dtype.element_ty), mask=there)


def sum_parts(partial: Tensor, found: Tensor) -> None:
    """Write the sum over the parts in the dtype of `found`.

    partial: (parts, N, ...) or a view of this shape, with N first in memory. found: (N, ...), contiguous.
    """
    parts, size = partial.shape[:2]
    width = found[0].numel()
    additive_vector_kernel[(-(-width // WIDTH), size)](
        partial, found, 1, parts, width, 0, partial.stride(1), partial.stride(0), ROWS=32, WIDTH=WIDTH,
        num_warps=4,
    )  # fmt: skip


def vector_gradient(partial: Tensor, like: Tensor) -> Tensor:
    """Return the gradient of the vector v.

    partial: partial sums of it, (B, H, parts, D), in float32.
    like: the vector v, (1 or H, D). If it is (1, D), all heads share it.
    """
    batch, heads, parts, width = partial.shape
    batch_step, head_step, part_step, _ = partial.stride()
    if len(like) != heads:  # B and H as one dimension
        batch, heads, batch_step = batch * heads, 1, head_step
    found = like.new_empty(heads, width)
    additive_vector_kernel[(-(-width // WIDTH), heads)](
        partial, found, batch, parts, width, batch_step, head_step, part_step, ROWS=ROWS, WIDTH=WIDTH,
        num_warps=8,
    )  # fmt: skip
    return found
