# mypy: disable-error-code="no-untyped-def"
"""Token embeddings times a factor, plus position embeddings, then dropout, as one kernel for each pass.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
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

__all__ = ["EmbeddingDropout"]

ROWS, COLUMNS = 4, 512
"""Size of the tile of a program."""

FEW, SCAN = 8192, 256
"""Up to FEW tokens, one kernel computes the gradient of the table: each program compares its token with all
others, SCAN at once. For more tokens, PyTorch sorts them, which takes several kernels."""


@triton.jit(do_not_specialize=["limit", "rows", "length", "classes"])
def embedding_forward_kernel(
    tokens, table, places, seed, result, limit, factor, multiplier, rows, length, width,
    classes, PLACES: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute result = dropout(multiplier * table[token] + place) for a tile of (rows, width).

    tokens: reads (rows,). table: reads (V, width).
    places: reads the position embeddings, (length, width); row r has position r % length.
    limit: see kept(). factor: 1 / (1 - dropout).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    token = tl.load(tokens + row, mask=row < rows, other=0).to(tl.int64)
    # The embedding of an invalid token is NaN, so that the trainer stops.
    known = inside & ((token >= 0) & (token < classes))[:, None]
    value = tl.load(table + token[:, None] * width + column[None, :], mask=known, other=float("nan"))
    value = value.to(tl.float32) * multiplier
    if PLACES:
        at = (row % length).to(tl.int64)[:, None] * width + column[None, :]
        value += tl.load(places + at, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        value = tl.where(kept(seed, limit, row, column), value * factor, 0.0)
    tl.store(result + row.to(tl.int64)[:, None] * width + column[None, :], value, mask=inside)


@triton.jit(do_not_specialize=["limit", "rows"])
def embedding_backward_kernel(
    dresult, seed, dvalue, limit, factor, multiplier, rows, width, DROPOUT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of table[token] for each row, from dresult, for a tile of (rows, width)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    d = tl.load(dresult + at, mask=inside, other=0.0).to(tl.float32) * multiplier
    if DROPOUT:
        d = tl.where(kept(seed, limit, row, column), d * factor, 0.0)
    tl.store(dvalue + at, d, mask=inside)


@triton.jit
def embedding_gradient_kernel(
    dresult, tokens, seed, dtable, limit, factor, multiplier, rows, width, padding, DROPOUT: tl.constexpr,
    SCAN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the embedding of one token, for COLUMNS columns.

    There is a program for each row. The program of the first row with a token sums the gradients of all rows
    with this token, always in the same order. The programs of the other rows do nothing.

    dresult: reads (rows, width). tokens: reads (rows,).
    dtable: writes (V, width), only for tokens that occur and are not `padding`.
    SCAN: a multiple of ROWS.
    """
    place = tl.program_id(0)
    token = tl.load(tokens + place)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    across = (column < width)[None, :]
    earlier = 0
    for first in range(0, place, SCAN):
        others = first + tl.arange(0, SCAN)
        same = tl.load(tokens + others, mask=others < place, other=-1) == token
        earlier += tl.sum(same.to(tl.int32), 0)
    if (earlier == 0) & (token != padding):
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(place // SCAN * SCAN, rows, SCAN):
            others = first + tl.arange(0, SCAN)
            same = tl.load(tokens + others, mask=others < rows, other=-1) == token
            if tl.sum(same.to(tl.int32), 0) > 0:
                for start in range(first, first + SCAN, ROWS):
                    row = start + tl.arange(0, ROWS)
                    mine = tl.load(tokens + row, mask=row < rows, other=-1) == token
                    if tl.sum(mine.to(tl.int32), 0) > 0:
                        at = row.to(tl.int64)[:, None] * width + column[None, :]
                        d = tl.load(dresult + at, mask=mine[:, None] & across, other=0.0).to(tl.float32)
                        if DROPOUT:
                            d = tl.where(kept(seed, limit, row, column), d * factor, 0.0)
                        total += d
        into = dtable + token.to(tl.int64) * width + column
        tl.store(into, tl.sum(total, 0) * multiplier, mask=column < width)


class EmbeddingDropout(torch.autograd.Function):
    """dropout(multiplier * table[tokens] + places).

    table: (V, M), the token embeddings.
    tokens: (B, T), token ids.
    places: (T, M), the position embeddings, without gradient; or None.
    multiplier: factor of the token embeddings.
    dropout: dropout probability; 0 for none.
    padding: token id whose embedding gets no gradient; -1 for none.

    Returns (B, T, M), in the dtype of the table.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, places: Tensor | None, multiplier: float, dropout: float,
        padding: int,
    ) -> Tensor:  # fmt: skip
        table, tokens = table.contiguous(), tokens.contiguous()
        places = None if places is None else places.contiguous()
        width, length = table.shape[1], tokens.shape[1]
        result = table.new_empty(*tokens.shape, width)
        seed = next_seed(table.device) if dropout else tokens
        ctx.numbers = limit(dropout), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0, multiplier
        ctx.dropout, ctx.classes, ctx.padding = bool(dropout), len(table), padding
        if result.numel():
            embedding_forward_kernel[_grid(result)](
                tokens, table, table if places is None else places, seed, result, *ctx.numbers,
                tokens.numel(), length, width, len(table), PLACES=places is not None, DROPOUT=ctx.dropout,
                ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(tokens, seed)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        tokens, seed = ctx.saved_tensors
        dresult, count = dresult.contiguous(), tokens.numel()
        if 0 < count <= FEW:
            tokens = tokens.clamp(0, ctx.classes - 1)
            dtable = dresult.new_zeros(ctx.classes, dresult.shape[-1])
            grid = count, triton.cdiv(dresult.shape[-1], COLUMNS)
            embedding_gradient_kernel[grid](
                dresult, tokens, seed, dtable, *ctx.numbers, count, dresult.shape[-1], ctx.padding,
                DROPOUT=ctx.dropout, SCAN=SCAN, ROWS=2 * ROWS, COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
            return dtable, None, None, None, None, None
        dvalue = torch.empty_like(dresult)
        if dresult.numel():
            embedding_backward_kernel[_grid(dresult)](
                dresult, seed, dvalue, *ctx.numbers, tokens.numel(), dresult.shape[-1], DROPOUT=ctx.dropout,
                ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
        tokens = tokens.clamp(0, ctx.classes - 1)
        dtable = torch.ops.aten.embedding_dense_backward(dvalue, tokens, ctx.classes, ctx.padding, False)
        return dtable, None, None, None, None, None


def _grid(tensor: Tensor) -> tuple[int, int]:
    """Return the grid for a tensor (..., width): one program for each tile."""
    width = tensor.shape[-1]
    return triton.cdiv(tensor.numel() // width, ROWS), triton.cdiv(width, COLUMNS)
