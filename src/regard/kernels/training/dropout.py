# mypy: disable-error-code="no-untyped-def"
"""A bias, ReLU or GELU, then dropout, as one kernel for each pass.

The backward pass of ReLU needs only the result: an element is positive if ReLU and dropout have kept it.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.dropout import kept, limit, next_seed
from regard.kernels.launch import processors
from regard.kernels.training.partial_sums import sum_over_rows

__all__ = ["KINDS", "ActivationDropout"]

KINDS = ("relu", "gelu")
"""The activation functions that the kernels support. "gelu" is the exact one, with erf."""

ROWS, COLUMNS = 2, 1024
"""Size of the tile of a program."""

PROGRAMS = 4
"""Number of programs of the backward pass for each multiprocessor. Each processes many rows, and sums the
gradient of the bias over them."""


@triton.jit
def _activated(x, GELU: tl.constexpr):
    if GELU:
        return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return tl.where(x < 0.0, 0.0, x)  # NaN stays NaN


@triton.jit(do_not_specialize=["limit", "rows"])
def activation_forward_kernel(
    x, bias, seed, result, limit, factor, rows, width, BIAS: tl.constexpr, GELU: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute result = dropout(activation(x + bias)) for a tile of (rows, width).

    bias: reads (width,), with BIAS. limit: see kept(). factor: 1 / (1 - dropout).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    value = _activated(value, GELU)
    if DROPOUT:
        value = tl.where(kept(seed, limit, row, column), value * factor, 0.0)
    tl.store(result + at, value, mask=inside)


@triton.jit(do_not_specialize=["limit", "rows"])
def activation_backward_kernel(
    dresult, saved, bias, seed, dx, parts, limit, factor, rows, width, BIAS: tl.constexpr,
    GELU: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient dx from dresult, for every n-th block of ROWS rows, and COLUMNS columns.

    saved: reads x for GELU, and the result for ReLU.
    parts: writes the gradient of the bias, summed over the rows of the program, (programs, width), with BIAS.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    across = column < width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if BIAS and GELU:
        b = tl.load(bias + column, mask=across, other=0.0).to(tl.float32)
    for first in range(program * ROWS, rows, programs * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & across[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        d = tl.load(dresult + at, mask=inside, other=0.0).to(tl.float32) * factor
        value = tl.load(saved + at, mask=inside, other=0.0).to(tl.float32)
        if GELU:
            if BIAS:
                value += b[None, :]
            density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
            d *= 0.5 * (1.0 + tl.erf(value * 0.7071067811865476)) + value * density
            if DROPOUT:
                d = tl.where(kept(seed, limit, row, column), d, 0.0)
        else:
            d = tl.where(value > 0.0, d, 0.0)
        tl.store(dx + at, d, mask=inside)
        if BIAS:
            total += d
    if BIAS:
        tl.store(parts + program.to(tl.int64) * width + column, tl.sum(total, 0), mask=across)


class ActivationDropout(torch.autograd.Function):
    """dropout(activation(x + bias)).

    x: (..., M).
    bias: (M,), or None.
    kind: the name of the activation, "relu" or "gelu".
    dropout: dropout probability; 0 for none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str, dropout: float) -> Tensor:
        x = x.contiguous()
        result = torch.empty_like(x)
        seed = next_seed(x.device) if dropout else x
        ctx.options = {"BIAS": bias is not None, "GELU": kind == "gelu", "DROPOUT": bool(dropout)}
        ctx.numbers = limit(dropout), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
        rows, width = _sizes(x)
        if rows:
            grid = triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS)
            activation_forward_kernel[grid](
                x, x if bias is None else bias, seed, result, *ctx.numbers, rows, width, **ctx.options,
                ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(x if kind == "gelu" else result, bias, seed if dropout else None)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        saved, bias, seed = ctx.saved_tensors
        dresult, dx = dresult.contiguous(), torch.empty_like(saved)
        rows, width = _sizes(saved)
        blocks = triton.cdiv(width, COLUMNS)
        most = max(PROGRAMS * (processors(saved.device) or 1) // blocks, 1)
        programs = max(min(triton.cdiv(rows, ROWS), most), 1)
        empty = saved.new_empty if rows else saved.new_zeros
        parts = empty(programs, 0 if bias is None else width, dtype=torch.float32)
        if rows:
            activation_backward_kernel[(programs, blocks)](
                dresult, saved, saved if bias is None else bias, saved if seed is None else seed, dx, parts,
                *ctx.numbers, rows, width, **ctx.options, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
        return dx, None if bias is None else sum_over_rows(parts[None])[0].to(bias.dtype), None, None


def _sizes(tensor: Tensor) -> tuple[int, int]:
    """Return the number of rows and their width."""
    width = tensor.shape[-1]
    return tensor.numel() // max(width, 1), width
