# mypy: disable-error-code="no-untyped-def"
"""ReLU or GELU, then dropout, as one kernel for each pass.

The backward pass of ReLU needs only the result: an element is positive if ReLU and dropout have kept it.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.dropout_seeds import next_seed
from regard.kernels.kernel_dropout import kept, limit

__all__ = ["KINDS", "ActivationDropout"]

KINDS = ("relu", "gelu")
"""The activation functions that the kernels support. "gelu" is the exact one, with erf."""

ROWS, COLUMNS = 4, 512
"""Size of the tile of a program."""


@triton.jit
def activation_forward_kernel(
    x, seed, result, limit, factor, rows, width, GELU: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute result = dropout(activation(x)) for a tile of (rows, width).

    limit: see kept(). factor: 1 / (1 - dropout).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        value *= 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
    else:
        value = tl.where(value < 0.0, 0.0, value)  # NaN stays NaN
    if DROPOUT:
        value = tl.where(kept(seed, limit, row, column), value * factor, 0.0)
    tl.store(result + at, value, mask=inside)


@triton.jit
def activation_backward_kernel(
    dresult, saved, seed, dx, limit, factor, rows, width, GELU: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient dx from dresult, for a tile of (rows, width).

    saved: reads x for GELU, and the result for ReLU.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    d = tl.load(dresult + at, mask=inside, other=0.0).to(tl.float32) * factor
    value = tl.load(saved + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
        d *= 0.5 * (1.0 + tl.erf(value * 0.7071067811865476)) + value * density
        if DROPOUT:
            d = tl.where(kept(seed, limit, row, column), d, 0.0)
    else:
        d = tl.where(value > 0.0, d, 0.0)
    tl.store(dx + at, d, mask=inside)


class ActivationDropout(torch.autograd.Function):
    """dropout(activation(x)).

    x: (..., M).
    kind: the name of the activation, "relu" or "gelu".
    dropout: dropout probability; 0 for none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str, dropout: float) -> Tensor:
        x = x.contiguous()
        result = torch.empty_like(x)
        seed = next_seed(x.device) if dropout else x
        ctx.options = {"GELU": kind == "gelu", "DROPOUT": bool(dropout)}
        ctx.numbers = limit(dropout), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
        _launch(activation_forward_kernel, (x, seed, result), ctx)
        ctx.save_for_backward(x if kind == "gelu" else result, seed if dropout else None)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        saved, seed = ctx.saved_tensors
        dresult = dresult.contiguous()
        dx = torch.empty_like(saved)
        _launch(activation_backward_kernel, (dresult, saved, saved if seed is None else seed, dx), ctx)
        return dx, None, None


def _launch(kernel, tensors: tuple[Tensor, ...], ctx: Any) -> None:
    """Launch a kernel with one program for each tile of the last tensor, seen as (rows, width)."""
    width = tensors[-1].shape[-1]
    rows = tensors[-1].numel() // max(width, 1)
    if rows:
        grid = triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS)
        kernel[grid](
            *tensors, *ctx.numbers, rows, width, **ctx.options, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
        )
