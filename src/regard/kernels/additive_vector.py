# mypy: disable-error-code="no-untyped-def"
"""Backward pass, part 3: the gradient of the vector v, from partial sums that other kernels have written.

sum_parts() adds other partial sums with the same kernel. A sum by PyTorch takes longer on the host, because
replay.py launches kernels directly.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.quick_launch import quick_launch

__all__ = ["additive_vector_kernel", "sum_of_parts", "sum_parts", "vector_gradient"]

ROWS, WIDTH = 128, 32
"""Size of the tile of a program: partial sums and channels."""


@quick_launch
@triton.jit
def additive_vector_kernel(
    partial, before, found, batches, parts, width, partial_batch, partial_head, partial_part,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Add partial sums over the batch and the parts, and write the sum in the dtype of `found`.

    partial: reads the partial sums, (B, H, parts, D), with stride 1 in the last dimension.
    before: if ADD is True, reads a sum to add, (H, D).
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
    if ADD:
        sums += tl.load(before + head * width + channels, mask=there, other=0.0)
    tl.store(found + head * width + channels, sums.to(found.dtype.element_ty), mask=there)


def sum_parts(partial: Tensor, found: Tensor) -> None:
    """Write the sum over the parts in the dtype of `found`.

    partial: (parts, N, ...) or a view of this shape, with N first in memory. found: (N, ...), contiguous.
    """
    parts, size = partial.shape[:2]
    width = found[0].numel()
    additive_vector_kernel[(-(-width // WIDTH), size)](
        partial, found, found, 1, parts, width, 0, partial.stride(1), partial.stride(0), ROWS=32, WIDTH=WIDTH,
        ADD=False, num_warps=4,
    )  # fmt: skip


def sum_of_parts(partial: Tensor) -> Tensor:
    """Return the sum over the parts, (N, D). partial: (N, parts, D), contiguous."""
    found = partial.new_empty(partial.shape[0], partial.shape[2])
    sum_parts(partial.transpose(0, 1), found)
    return found


FEW_SUMS = 4
"""Maximum number of tensors of partial sums that are added one after another, by a kernel launch each."""


def vector_gradient(partial_sums: list[Tensor], like: Tensor) -> Tensor:
    """Return the gradient of the vector v.

    partial_sums: tensors (B, H, parts, D) in float32, the sum of which is the gradient.
    like: the vector v, (1 or H, D). If it is (1, D), all heads share it.
    """
    if len(partial_sums) > FEW_SUMS:
        partial_sums = [torch.cat(partial_sums, 2)]
    before: Tensor | None = None
    for i, partial in enumerate(partial_sums):
        batch, heads, parts, width = partial.shape
        batch_step, head_step, part_step, _ = partial.stride()
        if len(like) != heads:  # B and H as one dimension
            batch, heads, batch_step = batch * heads, 1, head_step
        last = i == len(partial_sums) - 1
        found = like.new_empty(heads, width, dtype=like.dtype if last else torch.float32)
        additive_vector_kernel[(-(-width // WIDTH), heads)](
            partial, found if before is None else before, found, batch, parts, width, batch_step, head_step,
            part_step, ROWS=ROWS, WIDTH=WIDTH, ADD=before is not None, num_warps=8,
        )  # fmt: skip
        before = found
    return found
