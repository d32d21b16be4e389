"""Cross-entropy of a linear output layer in bfloat16 on a CPU, without a tensor of all log-probabilities.

The logits of all tokens are the largest tensor of a training step. Here they are computed in chunks of rows,
and the forward pass also computes the gradients, so that a chunk is read again while it is in the cache. Rows
whose label is PAD are left out. `torch.nn.functional.linear_cross_entropy` of PyTorch 2.13 returns one loss
only; a training step also logs the loss without label smoothing. On CUDA, see
kernels/training/vocabulary_loss.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 20
"""About the number of logits of a chunk: 4 MiB in float32."""


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of the logits x W^T + b, summed over rows, with and without label smoothing.

    plain = -log p(y)     even = mean of -log p(v) over all classes v
    total = (1 - smoothing) * sum(plain) + smoothing * sum(even)

    features: x, (rows, M).
    weight, bias: W (V, M), and b (V,) or None.
    labels: y, (rows,).
    smoothing: the weight of `even`.
    pad: rows with this label have the loss 0.
    dtype: the dtype of the matrix products. The losses are float32.

    Returns total, and sum(plain), which is not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float,
        pad: int, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        rows = (labels != pad).nonzero().squeeze(1)
        x, y, w = features[rows].to(dtype), labels[rows, None], weight.to(dtype)
        b = None if bias is None else bias.to(dtype)
        classes, parts = len(w), -(-len(rows) * len(w) // CHUNK) or 1
        dx, dw = torch.zeros_like(features, dtype=dtype), torch.zeros_like(weight, dtype=torch.float32)
        db = None if bias is None else dw.new_zeros(classes)
        plain, even = dw.new_zeros(()), dw.new_zeros(())
        for own, part, label in zip(rows.chunk(parts), x.chunk(parts), y.chunk(parts), strict=True):
            logits = torch.mm(part, w.T) if b is None else torch.addmm(b, part, w.T)
            scores = torch.log_softmax(logits, -1, dtype=torch.float32)
            plain -= scores.gather(1, label).sum()
            even -= scores.mean(-1).sum()
            d = scores.exp_().sub_(smoothing / classes)
            d.scatter_add_(1, label, d.new_full(label.shape, smoothing - 1.0))
            half = d.to(dtype)
            dx[own] = torch.mm(half, w)
            dw += torch.mm(half.T, part)
            if db is not None:
                db += d.sum(0)
        ctx.save_for_backward(dx, dw, db)
        ctx.dtypes = features.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain + smoothing * even, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.saved_tensors, ctx.dtypes, ctx.needs_input_grad[:3], strict=True)
        gradients = [
            (each * dtotal.to(each.dtype)).to(dtype) if needed else None for each, dtype, needed in wanted
        ]
        return *gradients, None, None, None, None
