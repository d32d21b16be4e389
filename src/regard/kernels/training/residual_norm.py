# mypy: disable-error-code="no-untyped-def"
"""Residual connection with dropout, and the layer normalisation after it, as one kernel for each pass.

total = x + dropout(change + added)     normed = LayerNorm(total)

In training, these are the operations between two matrix products of a Transformer. Separate operators would
read and write the whole tensors several times.

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

__all__ = ["WIDEST", "ResidualNorm"]

WIDEST = 4096
"""The largest width that the kernels support: a program holds whole rows in registers."""

ROWS_AT_LEAST = 4
"""Minimum number of rows of a program of the backward pass."""

WARPS = 16
"""Number of warps of the backward pass for each multiprocessor. Each program processes many rows, and sums
the gradients of weight and biases over them."""


@triton.jit(do_not_specialize=["limit", "rows"])
def residual_norm_forward_kernel(
    x, change, added, seed, weight, bias, total, normed, mean, scale, limit, factor, rows, width, epsilon,
    CHANGE: tl.constexpr, ADDED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute total = x + dropout(change + added) and normed = LayerNorm(total) for ROWS rows.

    x, change: read (rows, width). added: reads (width,). seed: reads the seed of dropout.
    weight, bias: read (width,).
    total, normed: write (rows, width).
    mean, scale: write the mean and 1 / standard deviation of each row of total, (rows,).
    limit: see kept(). factor: 1 / (1 - dropout).
    CHANGE, ADDED: whether `change` and `added` exist. Without a change, total = x is not written.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if CHANGE:
        more = tl.load(change + at, mask=inside, other=0.0).to(tl.float32)
        if ADDED:
            more += tl.load(added + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
        if DROPOUT:
            more = tl.where(kept(seed, limit, row, column), more * factor, 0.0)
        value = tl.where(inside, value + more, 0.0)
        tl.store(total + at, value, mask=inside)
    middle = tl.sum(value, 1) / width
    centred = tl.where(inside, value - middle[:, None], 0.0)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 1) / width + epsilon)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(normed + at, centred * inverse[:, None] * w[None, :] + b[None, :], mask=inside)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(scale + row, inverse, mask=row < rows)


@triton.jit(do_not_specialize=["limit", "rows"])
def residual_norm_backward_kernel(
    dtotal, dnormed, total, seed, weight, mean, scale, dx, dchange, parts, limit, factor, rows, width,
    DTOTAL: tl.constexpr, CHANGE: tl.constexpr, ADDED: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Backward pass of residual_norm_forward_kernel; each program processes every n-th block of ROWS rows.

    dtotal, dnormed: read the gradients of total and normed, (rows, width). DTOTAL: whether there is a dtotal.
    total, seed, weight, mean, scale: read, as in the forward kernel.
    dx, dchange: write the gradients of x and change, (rows, width).
    parts: writes the gradients of weight and bias, and of `added` with ADDED, summed over the rows of the
        program, (2 or 3, programs, width).
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    dweight = tl.zeros((ROWS, WIDTH), tl.float32)
    dbias = tl.zeros((ROWS, WIDTH), tl.float32)
    dadded = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(program * ROWS, rows, programs * ROWS, num_stages=3):  # loads rows in advance
        row = first + tl.arange(0, ROWS)
        there = row < rows
        inside = there[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        middle = tl.load(mean + row, mask=there, other=0.0)
        inverse = tl.load(scale + row, mask=there, other=0.0)
        d = tl.load(dnormed + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, (x - middle[:, None]) * inverse[:, None], 0.0)
        dweight += d * x
        dbias += d
        d *= w[None, :]
        along = tl.sum(d * x, 1) / width
        average = tl.sum(d, 1) / width
        d = (d - average[:, None] - x * along[:, None]) * inverse[:, None]
        if DTOTAL:
            d += tl.load(dtotal + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at, d, mask=inside)
        if CHANGE:
            if DROPOUT:
                d = tl.where(kept(seed, limit, row, column), d, 0.0) * factor
            tl.store(dchange + at, d, mask=inside)
            if ADDED:
                dadded += tl.where(inside, d, 0.0)
    into = parts + program.to(tl.int64) * width + column
    tl.store(into, tl.sum(dweight, 0), mask=column < width)
    step = programs.to(tl.int64) * width
    tl.store(into + step, tl.sum(dbias, 0), mask=column < width)
    if ADDED:
        tl.store(into + 2 * step, tl.sum(dadded, 0), mask=column < width)


class ResidualNorm(torch.autograd.Function):
    """total = x + dropout(change + added), normed = LayerNorm(total).

    x: (..., M).
    change: (..., M), or None. Then the first result is an empty tensor instead of total.
    added: (M,), or None: a bias of the linear layer that computed `change`.
    weight, bias: of the layer normalisation, (M,).
    epsilon: added to the variance.
    dropout: dropout probability; 0 for none.
    dtype: dtype of normed. total has the dtype of x.

    Returns total and normed, both (..., M).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, change: Tensor | None, added: Tensor | None, weight: Tensor, bias: Tensor,
        epsilon: float, dropout: float, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        width = x.shape[-1]
        x = x.contiguous()
        rows = x.numel() // width
        total, change = x, None if change is None else change.contiguous()
        normed = torch.empty_like(x, dtype=dtype)
        mean, scale = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
        if change is not None:
            total = torch.empty_like(x)
        seed = next_seed(x.device) if change is not None and dropout else mean
        ctx.options = {"CHANGE": change is not None, "DROPOUT": seed is not mean}
        ctx.options["ADDED"] = change is not None and added is not None
        tile, ctx.epsilon, ctx.dropout = _tile(width), epsilon, dropout
        if rows:
            residual_norm_forward_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
                x, x if change is None else change, weight if added is None else added, seed, weight, bias,
                total, normed, mean, scale, limit(dropout), _factor(dropout), rows, width, epsilon,
                **ctx.options, **tile,
            )  # fmt: skip
        ctx.save_for_backward(total, seed, weight, mean, scale)
        of_added = None if added is None else added.dtype
        ctx.dtypes = None if change is None else change.dtype, bias.dtype, of_added
        ctx.set_materialize_grads(False)
        if change is None:
            total = x.new_empty(0)
            ctx.mark_non_differentiable(total)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor | None, dnormed: Tensor | None) -> tuple[Tensor | None, ...]:
        total, seed, weight, mean, scale = ctx.saved_tensors
        width, rows, tile = total.shape[-1], len(mean), _tile(total.shape[-1], 256)
        dnormed = torch.zeros_like(total) if dnormed is None else dnormed.contiguous()
        dtype, of_bias, of_added = ctx.dtypes
        dtotal = None if dtotal is None or dtype is None else dtotal.contiguous()
        dx = torch.empty_like(total)
        dchange = dx if dtype is None else torch.empty_like(total, dtype=dtype)
        most = max(WARPS // tile["num_warps"], 1) * (processors(total.device) or 1)
        programs = max(min(rows // ROWS_AT_LEAST, most), 1)
        sizes = (2 + ctx.options["ADDED"], programs, width)
        sums = (total.new_empty if rows else total.new_zeros)(sizes, dtype=torch.float32)
        if rows:
            residual_norm_backward_kernel[(programs,)](
                dnormed if dtotal is None else dtotal, dnormed, total, seed, weight, mean, scale, dx,
                dchange, sums, limit(ctx.dropout), _factor(ctx.dropout), rows, width,
                DTOTAL=dtotal is not None, **ctx.options, **tile,
            )  # fmt: skip
        dweight, dbias, *rest = sum_over_rows(sums).unbind()
        dadded = rest[0].to(of_added) if rest else None
        gradients = (dadded, dweight.to(weight.dtype), dbias.to(of_bias))
        return dx, None if dtype is None else dchange, *gradients, None, None, None


def _tile(width: int, columns_of_warp: int = 512) -> dict[str, int]:
    """Return the launch parameters for rows of this width.

    With 512 columns of a warp, 16 for each thread, one warp computes most rows, so that its sums need no
    synchronisation. The backward pass reads more tensors, and has fewer columns.
    """
    columns = triton.next_power_of_2(width)
    return {"ROWS": 1, "WIDTH": columns, "num_warps": max(columns // columns_of_warp, 1)}


def _factor(dropout: float) -> float:
    """Return the factor of the elements that dropout keeps."""
    return 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
