# mypy: disable-error-code="no-untyped-def"
"""Token embeddings times a factor, plus position embeddings, then dropout, as one kernel; and its gradient.

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

__all__ = ["EmbeddingDropout"]

ROWS, COLUMNS = 4, 512
"""Size of the tile of a program."""

FEW = 16384
"""Up to FEW tokens, a kernel sorts the tokens by comparing each token with all others. For more tokens,
PyTorch sorts them, with several kernels."""


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


@triton.jit(do_not_specialize=["rows", "classes"])
def embedding_order_kernel(tokens, order, ordered, rows, classes, ROWS: tl.constexpr, SCAN: tl.constexpr):
    """Sort the tokens by comparing ROWS of them with all others.

    order, ordered: write the row of each token and the token, both (rows,), in the order of the tokens. Rows
        with the same token stay in their order.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + row, mask=row < rows, other=0)
    token = tl.minimum(tl.maximum(token, 0), classes - 1).to(tl.int32)
    place = tl.zeros([ROWS], tl.int32)
    for first in range(0, rows, SCAN):
        others = first + tl.arange(0, SCAN)
        other = tl.load(tokens + others, mask=others < rows, other=0)
        other = tl.minimum(tl.maximum(other, 0), classes - 1).to(tl.int32)
        other = tl.where(others < rows, other, classes)[None, :]
        before = (other == token[:, None]) & (others[None, :] < row[:, None])
        place += tl.sum(((other < token[:, None]) | before).to(tl.int32), 1)
    tl.store(order + place, row, mask=row < rows)
    tl.store(ordered + place, token, mask=row < rows)


@triton.jit
def _gradients(dresult, seed, limit, factor, row, column, there, width, DROPOUT: tl.constexpr):
    """Return the gradients of the input of dropout for some rows, (ROWS, COLUMNS); 0 if `there` is False."""
    inside = there[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    d = tl.load(dresult + at, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        d = tl.where(kept(seed, limit, row, column), d * factor, 0.0)
    return d


@triton.jit(do_not_specialize=["limit", "rows", "padding"])
def embedding_gradient_kernel(
    dresult, order, ordered, seed, dtable, limit, factor, multiplier, rows, width, padding,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of all rows with the same token.

    The program processes ROWS places of the sorted tokens. It computes the sums of the tokens whose first
    place is one of them. The order of the additions is always the same, so that two runs give the same bits.

    dresult: reads (rows, width). order, ordered: read the results of embedding_order_kernel.
    dtable: writes (V, width), only for tokens that occur and are not `padding`.
    """
    start = tl.program_id(0) * ROWS
    place = start + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = place < rows
    token = tl.load(ordered + place, mask=there, other=-1)
    previous = tl.load(ordered + place - 1, mask=there & (place > 0), other=-1)
    begins = there & (token != previous) & (token != padding)
    row = tl.load(order + place, mask=there, other=0)
    used = there & (token != padding)
    d = _gradients(dresult, seed, limit, factor, row, column, used, width, DROPOUT)
    same = (token[:, None] == token[None, :]).to(tl.float32)
    sums = tl.dot(same, d, input_precision="ieee")
    # The last token of these places can continue in the next places.
    last = tl.max(token, 0)
    owner = tl.sum((begins & (token == last)).to(tl.int32), 0)
    after = start + ROWS
    more = tl.zeros([COLUMNS], tl.float32)
    going = (owner > 0) & (after < rows)
    while going:
        next_place = after + tl.arange(0, ROWS)
        mine = tl.load(ordered + next_place, mask=next_place < rows, other=-1) == last
        next_row = tl.load(order + next_place, mask=mine, other=0)
        more += tl.sum(_gradients(dresult, seed, limit, factor, next_row, column, mine, width, DROPOUT), 0)
        after += ROWS
        going = (tl.sum(mine.to(tl.int32), 0) == ROWS) & (after < rows)
    sums += tl.where((token == last)[:, None], more[None, :], 0.0)
    into = dtable + token.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(into, sums * multiplier, mask=begins[:, None] & (column < width)[None, :])


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
        dresult, count, width = dresult.contiguous(), tokens.numel(), dresult.shape[-1]
        dtable = dresult.new_zeros(ctx.classes, width)
        if count:
            embedding_gradient_kernel[(triton.cdiv(count, 32), triton.cdiv(width, 64))](
                dresult, *_sorted(tokens, ctx.classes), seed, dtable, *ctx.numbers, count, width, ctx.padding,
                DROPOUT=ctx.dropout, ROWS=32, COLUMNS=64, num_warps=4,
            )  # fmt: skip
        return dtable, None, None, None, None, None


def _sorted(tokens: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the indices that sort the tokens, and the sorted tokens, both int32.

    Invalid tokens are replaced by the nearest valid ones. The sort is stable.
    """
    count = tokens.numel()
    if count > FEW:
        # A radix sort takes one pass over the tokens for each byte of the dtype.
        small = torch.int16 if classes <= 2**15 else torch.int32
        ordered, order = tokens.flatten().clamp(0, classes - 1).to(small).sort(stable=True)
        return order.int(), ordered.int()
    order, ordered = tokens.new_empty(2, count, dtype=torch.int32)
    embedding_order_kernel[(triton.cdiv(count, 8),)](
        tokens, order, ordered, count, classes, ROWS=8, SCAN=1024, num_warps=4
    )
    return order, ordered


def _grid(tensor: Tensor) -> tuple[int, int]:
    """Return the grid for a tensor (..., width): one program for each tile."""
    width = tensor.shape[-1]
    return triton.cdiv(tensor.numel() // width, ROWS), triton.cdiv(width, COLUMNS)
