# mypy: disable-error-code="no-untyped-def"
"""R-Drop with a linear output layer over a large vocabulary, without a tensor of all logits.

As in vocabulary_loss.py, logits are computed in chunks of rows, and one kernel overwrites them with their
gradient. Two consecutive rows are the same token in two passes with different dropout masks.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.vocabulary_loss import BLOCK, linear_loss, scaled_gradients

__all__ = ["VocabularyRDrop"]


@triton.jit
def r_drop_kernel(
    logits, labels, plain, even, divergence, classes, logits_row, pad, smoothing, weight,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the losses of a token with label y from two passes with the distributions p and q.

    logits: reads (2 tokens, classes): p and q of each token. With GRADIENT, they are overwritten by the
        gradient of `total` in VocabularyRDrop, or by 0 if the label is `pad`.
    labels: reads y, (2 tokens,): each label twice.
    plain: writes -(log p(y) + log q(y)) / 2, (tokens,); 0 if the label is `pad`, NaN if it is not a class.
    even: writes the mean of -(log p(v) + log q(v)) / 2 over all classes v; 0 if the label is `pad`.
    divergence: writes (KL(p || q) + KL(q || p)) / 2; 0 if the label is `pad`.
    """
    token = tl.program_id(0).to(tl.int64)
    p_logits = logits + 2 * token * logits_row
    q_logits = p_logits + logits_row
    label = tl.load(labels + 2 * token)
    there = label != pad
    known = (label >= 0) & (label < classes)
    # The reductions of the first loop synchronise all threads, so these loads end before the stores below.
    p_chosen = tl.load(p_logits + label, mask=known, other=float("nan")).to(tl.float32)
    q_chosen = tl.load(q_logits + label, mask=known, other=float("nan")).to(tl.float32)
    p_best = -float("inf")
    q_best = -float("inf")
    p_totals = tl.zeros([BLOCK], tl.float32)
    q_totals = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, classes, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(p_logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
        y = tl.load(q_logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
        p_above = tl.maximum(p_best, tl.max(x, 0))
        q_above = tl.maximum(q_best, tl.max(y, 0))
        p_totals = p_totals * tl.exp(p_best - p_above) + tl.exp(x - p_above)
        q_totals = q_totals * tl.exp(q_best - q_above) + tl.exp(y - q_above)
        sums += tl.where(columns < classes, x + y, 0.0)
        p_best = p_above
        q_best = q_above
    p_lse = p_best + tl.log(tl.sum(p_totals, 0))
    q_lse = q_best + tl.log(tl.sum(q_totals, 0))
    forward = tl.zeros([BLOCK], tl.float32)
    reverse = tl.zeros([BLOCK], tl.float32)
    for first in range(0, classes, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(p_logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32) - p_lse
        y = tl.load(q_logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32) - q_lse
        distance = tl.where(columns < classes, x - y, 0.0)
        forward += tl.exp(x) * distance
        reverse -= tl.exp(y) * distance
    p_to_q = tl.sum(forward, 0)  # KL(p || q)
    q_to_p = tl.sum(reverse, 0)
    tl.store(plain + token, tl.where(there, 0.5 * (p_lse + q_lse - p_chosen - q_chosen), 0.0))
    tl.store(even + token, tl.where(there, 0.5 * (p_lse + q_lse - tl.sum(sums, 0) / classes), 0.0))
    tl.store(divergence + token, tl.where(there, 0.5 * (p_to_q + q_to_p), 0.0))
    if GRADIENT:
        # The gradient of KL(p || q) + KL(q || p) is p (log p - log q - KL(p || q)) + p - q for the logits of
        # p, and the same with p and q exchanged for the logits of q.
        for first in range(0, classes, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            inside = columns < classes
            x = tl.load(p_logits + columns, mask=inside, other=0.0).to(tl.float32) - p_lse
            y = tl.load(q_logits + columns, mask=inside, other=0.0).to(tl.float32) - q_lse
            p = tl.exp(x)
            q = tl.exp(y)
            wanted = tl.where(columns == label, 1.0 - smoothing, 0.0) + smoothing / classes
            dp = 0.5 * (p - wanted) + 0.25 * weight * (p * (x - y - p_to_q) + p - q)
            dq = 0.5 * (q - wanted) + 0.25 * weight * (q * (y - x - q_to_p) + q - p)
            tl.store(p_logits + columns, tl.where(there, dp, 0.0), mask=inside)
            tl.store(q_logits + columns, tl.where(there, dq, 0.0), mask=inside)


class VocabularyRDrop(torch.autograd.Function):
    """The losses of regard.training.r_drop.r_drop() for the logits x W^T + b.

    plain = mean over both passes of -log p(y), summed over tokens; even: the same for -log p(v), mean over v
    total = (1 - smoothing) * plain + smoothing * even + weight / 2 * divergence

    features: x, (2 tokens, M): two rows per token.
    matrix, bias: W (V, M), and b (V,) or None.
    labels: y, (2 tokens,).
    smoothing, weight: label smoothing, and the weight of the divergence.
    pad: tokens with this label have the loss 0.
    trains: whether gradients are needed.

    For dtypes, see VocabularyLoss. Returns total, plain and divergence; only total is differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float,
        weight: float, pad: int, trains: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        tokens, classes, labels = len(features) // 2, len(matrix), labels.contiguous()
        losses = features.new_empty(3, tokens, dtype=torch.float32)
        plain, even, divergence = losses.unbind()

        def chunk_loss(logits: Tensor, chunk: slice) -> None:
            rows = slice(chunk.start // 2, chunk.stop // 2)
            r_drop_kernel[(len(logits) // 2,)](
                logits, labels[chunk], plain[rows], even[rows], divergence[rows], classes, logits.stride(0),
                pad, smoothing, weight, GRADIENT=trains, BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip

        linear_loss(ctx, features, matrix, bias, chunk_loss, trains, group=2)
        summed, spread, between = losses.sum(1).unbind()
        total = (1 - smoothing) * summed + smoothing * spread + 0.5 * weight * between
        ctx.mark_non_differentiable(summed, between)
        return total, summed, between

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled_gradients(ctx, dtotal), None, None, None, None, None
