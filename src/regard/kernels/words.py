# mypy: disable-error-code="no-untyped-def"
"""Words looked up in a table: the gradient of the table, each row summed by one program, in order.

Nothing is summed with atomics: two runs give the same bits.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["MOST", "LookedUp"]

MOST = 8192
"""So many words are looked through by each program; of more, torch sorts them."""


@triton.jit
def words_backward_kernel(
    tokens, doutput, dtable, count, width, pad,
    CHUNK: tl.constexpr, SOME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One word: if it stands here for the first time, what all its places send back, over some columns."""
    place = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < width
    token = tl.load(tokens + place)
    before = 0
    for first in range(0, place, CHUNK):
        at = first + tl.arange(0, CHUNK)
        others = tl.load(tokens + at, mask=at < place, other=-1)
        before += tl.sum((others == token).to(tl.int32), 0)
    if (before == 0) & (token != pad):
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(place, count, CHUNK):
            at = first + tl.arange(0, CHUNK)
            others = tl.load(tokens + at, mask=at < count, other=-1)
            if tl.sum((others == token).to(tl.int32), 0) > 0:
                for some in range(0, CHUNK, SOME):
                    near = first + some + tl.arange(0, SOME)
                    same = tl.load(tokens + near, mask=near < count, other=-1) == token
                    rows = doutput + near.to(tl.int64)[:, None] * width + columns[None, :]
                    found = tl.load(rows, mask=same[:, None] & there[None, :], other=0.0)
                    total += tl.sum(found.to(tl.float32), 0)
        tl.store(dtable + token * width + columns, total, mask=there)


class LookedUp(torch.autograd.Function):
    """The rows of a table (V, M) for tokens of any shape; the row of `pad` has no gradient."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor, pad: int) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.table, ctx.pad = table.shape, pad
        return torch.nn.functional.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutput: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        tokens, doutput = tokens.contiguous(), doutput.contiguous()
        dtable = doutput.new_zeros(ctx.table)
        count, width = tokens.numel(), ctx.table[1]
        words_backward_kernel[(count, triton.cdiv(width, 128))](
            tokens, doutput, dtable, count, width, ctx.pad, CHUNK=256, SOME=16, BLOCK=128, num_warps=2
        )
        return None, dtable, None
