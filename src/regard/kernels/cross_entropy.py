# mypy: disable-error-code="no-untyped-def"
"""Cross-entropy over many classes, with label smoothing.

The forward pass reads the logits once, and so does the backward pass.

The logits are read in their own dtype, without a copy, and reduced in float32. The forward pass saves one
number per row for the backward pass: the log-sum-exp (lse).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["SmoothedCrossEntropy"]

BLOCK = 4096
"""Number of classes that a program loads at once."""


@triton.jit
def cross_entropy_forward_kernel(
    logits, labels, plain, even, lse, classes, logits_row, pad, BLOCK: tl.constexpr
):
    """Compute two losses of one row with label y: -log p(y), and the mean of -log p(v) over all classes v.

    logits: reads (rows, classes).
    labels: reads y, (rows,).
    plain: writes -log p(y), (rows,); 0 if the label is `pad`.
    even: writes the mean of -log p(v), (rows,); 0 if the label is `pad`.
    lse: writes the log-sum-exp of the logits, (rows,).
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    best, total, summed = -float("inf"), 0.0, 0.0
    for first in range(0, classes, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
        above = tl.maximum(best, tl.max(x, 0))
        total = total * tl.exp(best - above) + tl.sum(tl.exp(x - above), 0)
        summed += tl.sum(tl.where(columns < classes, x, 0.0), 0)
        best = above
    found = best + tl.log(total)
    label = tl.load(labels + row)
    # The loss of an invalid label is NaN, so that the trainer stops. The label is not used as an index,
    # because the logit would lie outside the row.
    known = (label >= 0) & (label < classes)
    chosen = tl.load(logits + label, mask=known, other=float("nan")).to(tl.float32)
    there = label != pad
    tl.store(lse + row, found)
    tl.store(plain + row, tl.where(there, found - chosen, 0.0))
    tl.store(even + row, tl.where(there, found - summed / classes, 0.0))


@triton.jit
def cross_entropy_backward_kernel(
    dtotal, logits, labels, lse, dlogits, classes, logits_row, pad, smoothing, BLOCK: tl.constexpr
):
    """Compute the gradient of the logits of one row, for BLOCK classes v.

    dlogits = (p(v) - (1 - smoothing) [v = y] - smoothing / classes) * dtotal; 0 if the label is `pad`

    p is the softmax of the logits, y is the label, and [v = y] is 1 if v = y, otherwise 0.

    dtotal: reads the gradient of the loss, one number.
    logits, labels, lse: read, as in the forward kernel.
    dlogits: writes (rows, classes).
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < classes
    label = tl.load(labels + row)
    x = tl.load(logits + row * logits_row + columns, mask=inside, other=0.0).to(tl.float32)
    wanted = tl.where(columns == label, 1.0 - smoothing, 0.0) + smoothing / classes
    d = (tl.exp(x - tl.load(lse + row)) - wanted) * tl.load(dtotal).to(tl.float32)
    tl.store(dlogits + row * classes + columns, tl.where(label != pad, d, 0.0), mask=inside)


class SmoothedCrossEntropy(torch.autograd.Function):
    """Cross-entropy summed over rows, with and without label smoothing.

    plain = -log p(y)     even = mean of -log p(v) over all classes v
    total = (1 - smoothing) * sum(plain) + smoothing * sum(even)

    logits: (rows, V).
    labels: y, (rows,).
    smoothing: the weight of `even`.
    pad: rows with this label have the loss 0.

    Returns total, and sum(plain), which is not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, pad: int
    ) -> tuple[Tensor, Tensor]:
        rows, classes = logits.shape
        logits, labels = logits if logits.stride(1) == 1 else logits.contiguous(), labels.contiguous()
        plain, even, lse = (logits.new_empty(rows, dtype=torch.float32) for _ in range(3))
        if rows:
            cross_entropy_forward_kernel[(rows,)](
                logits, labels, plain, even, lse, classes, logits.stride(0), pad, BLOCK=BLOCK, num_warps=8
            )
        ctx.save_for_backward(logits, labels, lse)
        ctx.smoothing, ctx.pad = smoothing, pad
        summed = plain.sum()
        total = (1 - smoothing) * summed + smoothing * even.sum() if smoothing else summed.clone()
        ctx.mark_non_differentiable(summed)
        return total, summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, lse = ctx.saved_tensors
        rows, classes = logits.shape
        dlogits = logits.new_empty(rows, classes)
        if rows:
            cross_entropy_backward_kernel[(rows, triton.cdiv(classes, BLOCK))](
                dtotal, logits, labels, lse, dlogits, classes, logits.stride(0), ctx.pad, ctx.smoothing,
                BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip
        return dlogits, None, None, None
