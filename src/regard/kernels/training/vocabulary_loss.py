# mypy: disable-error-code="no-untyped-def"
"""Cross-entropy of a linear output layer over a large vocabulary, without a tensor of all logits.

The logits of all rows are often the largest tensor of a training step. Here they are computed in chunks of
rows. One kernel reads the logits of a chunk, computes the losses, and overwrites the logits with their
gradient. Then the gradients of features and weights are matrix products of the chunk. So the forward pass
computes the gradients too, and the backward pass only multiplies them by the gradient of the loss.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on
from regard.kernels.training.row_copy import copy_rows

__all__ = ["BLOCK", "VocabularyLoss"]

BLOCK, WARPS = 4096, 16
"""Number of classes that a program loads at once, and its number of warps. With 16 warps, the rows of all
programs that run at once fit into the L2 cache of an H200."""

LOG2E = tl.constexpr(1.4426950408889634)

CHUNK = 1 << 28
"""Maximum number of logits of a chunk: 512 MiB in bfloat16. Smaller chunks need less memory, but the matrix
products become slower, and the gradient of the weights is read and written once per chunk."""

ALIGNMENT = 8
"""Rows of matrices in half precision begin at a multiple of this number of elements, as tensor cores need."""


@triton.jit
def _columns(first, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Return the indices of BLOCK columns from `first` on, in groups of 16 bytes, (BLOCK / GROUP, GROUP).

    A thread loads a whole group.
    """
    return first + tl.arange(0, BLOCK // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _add_block(
    logits, first, classes, best, total, summed, BLOCK: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """Update the maximum, the sum of exponentials and the sum of logits of each group with BLOCK logits.

    best, total, summed: these three, (BLOCK / GROUP,). `total` is the sum of e^(x - best).
    WHOLE: whether all BLOCK columns exist.
    """
    column = _columns(first, BLOCK, GROUP)
    if WHOLE:
        x = tl.load(logits + column).to(tl.float32)
        if GROUP == 4:
            x += 0.0  # without it, a pass of the compiler that optimises sums of loaded numbers can fail
        summed += tl.sum(x, 1)
    else:
        x = tl.load(logits + column, mask=column < classes, other=-float("inf")).to(tl.float32)
        summed += tl.sum(tl.where(column < classes, x, 0.0), 1)
    above = tl.maximum(best, tl.max(x, 1))
    base = tl.where(above == -float("inf"), 0.0, above) * LOG2E
    total = total * tl.exp2(best * LOG2E - base) + tl.sum(tl.exp2(x * LOG2E - base[:, None]), 1)
    return above, total, summed


@triton.jit
def _write_block(
    logits, first, classes, lse, rest, BLOCK: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """Overwrite BLOCK logits x with e^(x - lse) - rest."""
    column = _columns(first, BLOCK, GROUP)
    inside = None
    if not WHOLE:
        inside = column < classes
    x = tl.load(logits + column, mask=inside).to(tl.float32)
    tl.store(logits + column, tl.exp2(x * LOG2E - lse * LOG2E) - rest, mask=inside)


@triton.jit
def _clear_block(logits, first, classes, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Overwrite BLOCK logits with 0."""
    column = _columns(first, BLOCK, GROUP)
    tl.store(logits + column, tl.zeros((BLOCK // GROUP, GROUP), tl.float32), mask=column < classes)


@triton.jit
def vocabulary_loss_kernel(
    logits, labels, plain, even, classes, logits_row, pad, smoothing, GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute two losses of one row with label y: -log p(y), and the mean of -log p(v) over all classes v.

    logits: reads (rows, classes). With GRADIENT, they are overwritten by the gradient of the smoothed loss,
        p(v) - (1 - smoothing) [v = y] - smoothing / classes, or 0 if the label is `pad`.
    labels: reads y, (rows,).
    plain: writes -log p(y), (rows,); 0 if the label is `pad`, NaN if it is not a class.
    even: writes the mean of -log p(v), (rows,); 0 if the label is `pad`.

    The first loop needs no synchronisation of the threads, because each group of columns has its own
    maximum. The second loop reads the row again, from the L2 cache.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    label = tl.load(labels + row)
    there = label != pad
    known = (label >= 0) & (label < classes)
    # The reductions below synchronise all threads, so this load ends before the stores.
    chosen = tl.load(logits + label, mask=known, other=float("nan")).to(tl.float32)
    best = tl.full([BLOCK // GROUP], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK // GROUP], tl.float32)
    summed = tl.zeros([BLOCK // GROUP], tl.float32)
    whole = classes // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        best, total, summed = _add_block(logits, first, classes, best, total, summed, BLOCK, GROUP, True)
    # The other columns, if any. Behind a condition, the pass of the compiler mentioned above would fail.
    best, total, summed = _add_block(logits, whole, classes, best, total, summed, BLOCK, GROUP, False)
    most = tl.max(best, 0)
    lse = most + tl.log(tl.sum(total * tl.exp2((best - most) * LOG2E), 0))
    tl.store(plain + row, tl.where(there, lse - chosen, 0.0))
    tl.store(even + row, tl.where(there, lse - tl.sum(summed, 0) / classes, 0.0))
    if GRADIENT:
        if there:
            rest = smoothing / classes
            for first in range(0, whole, BLOCK):
                _write_block(logits, first, classes, lse, rest, BLOCK, GROUP, True)
            if whole < classes:
                _write_block(logits, whole, classes, lse, rest, BLOCK, GROUP, False)
            tl.debug_barrier()  # the store below overwrites an element that another thread may have stored
            d = tl.exp2(chosen * LOG2E - lse * LOG2E) - rest - (1.0 - smoothing)
            tl.store(logits + label, d, mask=known)
        else:
            for first in range(0, classes, BLOCK):
                _clear_block(logits, first, classes, BLOCK, GROUP)


@triton.jit(do_not_specialize=["rows"])
def loss_sum_kernel(plain, even, total, summed, rows, smoothing, BLOCK: tl.constexpr):
    """Sum the losses of all rows with one program, in float32.

    plain, even: read the results of vocabulary_loss_kernel, (rows,).
    total: writes (1 - smoothing) * sum(plain) + smoothing * sum(even). summed: writes sum(plain).
    """
    plain_sums = tl.zeros([BLOCK], tl.float32)
    even_sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        plain_sums += tl.load(plain + row, mask=row < rows, other=0.0)
        even_sums += tl.load(even + row, mask=row < rows, other=0.0)
    plain_sum, even_sum = tl.sum(plain_sums, 0), tl.sum(even_sums, 0)
    tl.store(summed, plain_sum)
    # Without smoothing, `even` must not change the loss, even if it is infinite or NaN.
    smooth = (1.0 - smoothing) * plain_sum + smoothing * even_sum
    tl.store(total, tl.where(smoothing == 0.0, plain_sum, smooth))


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of the logits x W^T + b, summed over rows, with and without label smoothing.

    plain = -log p(y)     even = mean of -log p(v) over all classes v
    total = (1 - smoothing) * sum(plain) + smoothing * sum(even)

    features: x, (rows, M).
    weight, bias: W (V, M), and b (V,) or None.
    labels: y, (rows,).
    smoothing: the weight of `even`.
    pad: rows with this label have the loss 0.
    trains: whether gradients are needed.

    The logits have the autocast dtype, or the dtype of the features if autocast is off. The gradient of the
    weights is summed in float32.

    Returns total, and sum(plain), which is not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float,
        pad: int, trains: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        width, device = features.shape[1], features.device.type
        dtype = torch.get_autocast_dtype(device) if autocast_on(device) else features.dtype
        losses = features.new_empty(2, len(features), dtype=torch.float32)
        with torch.autocast(device, enabled=False):
            x, w, b = _in_dtype(features, weight, bias, dtype)
            dx, dw, db = _losses(x, w, b, labels.contiguous(), losses, smoothing, pad, trains)
        if dw is not None and bias is not None and b is None:  # the bias is a column of w, see _in_dtype()
            db = dw[:, width]
        gradients = (each if each is None else each[:, :width] for each in (dx, dw))
        ctx.save_for_backward(*gradients, db)
        ctx.dtypes = features.dtype, weight.dtype, None if bias is None else bias.dtype
        total, summed = losses.new_empty(()), losses.new_empty(())
        loss_sum_kernel[(1,)](
            *losses, total, summed, len(features), float(smoothing), BLOCK=16384, num_warps=32
        )
        ctx.mark_non_differentiable(summed)
        return total, summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.saved_tensors, ctx.dtypes, ctx.needs_input_grad[:3], strict=True)
        gradients = (_scaled(each, dtotal, dtype) if needed else None for each, dtype, needed in wanted)
        return *gradients, None, None, None, None


def _scaled(gradient: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return factor * gradient as a contiguous tensor. Rows of the gradient may be parts of longer rows."""
    rows = gradient if gradient.dim() == 2 else gradient[None]
    result = rows.new_empty(rows.shape, dtype=dtype)
    copy_rows(rows if rows.stride(-1) == 1 else rows.contiguous(), result, factor)
    return result.view(gradient.shape)


def _in_dtype(
    features: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convert x, W and b to dtype. In half precision, add columns to x and W until M is aligned.

    The first new column contains ones in x and b in W, so that the products with W also add b and compute its
    gradient; None is then returned for b. The other new columns contain zeros.
    """
    width = features.shape[1]
    more = -width % ALIGNMENT if dtype != torch.float32 else 0
    if not more:
        b = None if bias is None else bias.to(dtype)
        return features.to(dtype).contiguous(), weight.to(dtype).contiguous(), b
    x, w = (each.new_empty(len(each), width + more, dtype=dtype) for each in (features, weight))
    copy_rows(features if features.stride(1) == 1 else features.contiguous(), x)
    copy_rows(weight if weight.stride(1) == 1 else weight.contiguous(), w)
    if bias is not None:
        x[:, width], w[:, width] = 1.0, bias
    return x, w, None


def _losses(
    x: Tensor, w: Tensor, b: Tensor | None, labels: Tensor, losses: Tensor, smoothing: float, pad: int,
    trains: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Write `plain` and `even` of each row to losses, (2, rows), with the logits of a chunk at a time.

    Returns the gradients of x, W and b if `trains`, else None for each. They are summed over rows; those of W
    and b are float32.
    """
    (rows, width), classes = x.shape, len(w)
    dx, dw, db = None, None, None
    if trains:
        dx = x.new_empty(rows, width)
        dw = (x.new_empty if rows else x.new_zeros)(classes, width, dtype=torch.float32)
        db = None if rows or b is None else dw.new_zeros(classes)
    chunks = -(-rows // max(CHUNK // classes, 1)) or 1
    step = max(-(-rows // chunks), 1)  # chunks have about the same number of rows
    spaced = -(-classes // ALIGNMENT) * ALIGNMENT
    buffer = x.new_empty(min(step, rows), spaced)[:, :classes]
    for start in range(0, rows, step):
        part, chunk = x[start : start + step], slice(start, start + step)
        logits = buffer[: len(part)]
        if b is None:
            torch.mm(part, w.T, out=logits)
        else:
            torch.addmm(b, part, w.T, out=logits)
        vocabulary_loss_kernel[(len(logits),)](
            logits, labels[chunk], *losses[:, chunk], classes, logits.stride(0), pad, smoothing,
            GRADIENT=trains, BLOCK=BLOCK, GROUP=16 // logits.element_size(), num_warps=WARPS,
        )  # fmt: skip
        if dx is not None and dw is not None:
            torch.mm(logits, w, out=dx[chunk])
            _add_product(dw, logits.T, part, beta=min(start, 1))  # the first product overwrites dw
        if dw is not None and b is not None:
            part_db = logits.sum(0, dtype=torch.float32)
            db = part_db if db is None else db + part_db
    return dx, dw, db


def _add_product(total: Tensor, a: Tensor, b: Tensor, beta: int) -> None:
    """Compute total = beta * total + a @ b, without rounding the product to the dtype of a and b.

    total: a float32 tensor. If beta is 0, it is only written.
    """
    if a.is_cuda and a.dtype != torch.float32:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, beta=beta, out=total)
    else:
        total.addmm_(a.float(), b.float(), beta=beta)
