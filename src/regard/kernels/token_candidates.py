# mypy: disable-error-code="no-untyped-def"
"""The most probable tokens of each row of logits, and the parts of their log-sum-exp, in one pass.

The logits are read once, in their own dtype, and no tensor of log-probabilities is written.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["token_candidates"]

BLOCK = 4096
"""Number of tokens of the vocabulary that a program loads."""


@triton.jit
def token_candidates_kernel(
    logits, barred, short, values, tokens, largest, total, size, end, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """Find the COUNT highest logits among BLOCK tokens of one row; equal ones in the order of their ids.

    logits: reads (rows, size).
    barred: reads (size,), 1 for tokens that are forbidden in every row.
    short: reads (rows,), 1 for rows in which the token `end` is forbidden.
    values, tokens: write (rows, blocks, COUNT), the logits and the ids. Unused values are -inf.
    largest, total: write (rows, blocks), the maximum m of all logits of the block, and the sum of exp(x - m).
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    column = block * BLOCK + place
    inside = column < size
    x = tl.load(logits + row * size + column, mask=inside, other=-float("inf")).to(tl.float32)
    best = tl.max(x, 0)
    at = row * tl.num_programs(1) + block
    tl.store(largest + at, best)
    tl.store(total + at, tl.sum(tl.where(inside, tl.exp(x - best), 0.0), 0))
    hidden = tl.load(barred + column, mask=inside, other=1) != 0
    hidden = hidden | ((column == end) & (tl.load(short + row) != 0))
    x = tl.where(hidden, -float("inf"), x)
    for number in tl.static_range(COUNT):
        value, index = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(values + at * COUNT + number, value)
        tl.store(tokens + at * COUNT + number, (block * BLOCK + index).to(tl.int64))
        x = tl.where(place == index, -float("inf"), x)


def token_candidates(
    logits: Tensor, count: int, barred: Tensor, short: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities and ids of tokens that include the `count` most probable ones of each row.

    logits: (rows, V).
    count: the time of the kernel is proportional to it.
    barred: (V,), uint8, 1 for tokens that are forbidden in every row.
    short: (rows,), uint8, 1 for rows in which the token `end` is forbidden.

    Returns log-probabilities and ids, (rows, C), and the log-sum-exp of each row, (rows,). C is a multiple of
    `count`. Forbidden tokens have -inf. If tokens have equal logits, those with the lowest ids are included.
    """
    rows, size = logits.shape
    logits, blocks = logits.contiguous(), triton.cdiv(size, BLOCK)
    values = logits.new_empty(rows, blocks, count, dtype=torch.float32)
    tokens = logits.new_empty(rows, blocks, count, dtype=torch.long)
    largest, total = (logits.new_empty(rows, blocks, dtype=torch.float32) for _ in range(2))
    if rows:
        token_candidates_kernel[(rows, blocks)](
            logits, barred, short, values, tokens, largest, total, size, end,
            COUNT=count, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
    highest_R1 = largest.amax(1, keepdim=True)
    log_R1 = (total * (largest - highest_R1).exp()).sum(1, keepdim=True).log()
    scores = (values.flatten(1) - highest_R1) - log_R1
    return scores, tokens.flatten(1), (highest_R1 + log_R1)[:, 0]
