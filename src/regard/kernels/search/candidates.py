# mypy: disable-error-code="no-untyped-def"
"""The most probable tokens of each row of logits, and the parts of their log-sum-exp, in one pass.

The logits are read once, in their own dtype, and no tensor of log-probabilities is written.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Candidates", "find_candidates"]

SMALLEST_BLOCK, LARGEST_BLOCK = 1024, 4096
"""Number of tokens of the vocabulary that a program loads; powers of two. The smallest block has one warp, so
that its threads need no barrier. With many blocks, the next kernel has more candidates to read."""

MOST_LANES = 512
"""The smallest block is used if a row has at most this many candidates."""

WARPS = 1
"""Number of warps of a program for each 1024 tokens."""


class Candidates(NamedTuple):
    """The COUNT highest logits of each block of the vocabulary, for each row.

    values, tokens: (rows, blocks, COUNT), logits (float32) and token ids (int32). Forbidden tokens have -inf.
    largest, total: (rows, blocks), the maximum m of all logits of the block, and the sum of exp(x - m).
    """

    values: Tensor
    tokens: Tensor
    largest: Tensor
    total: Tensor


@triton.jit
def token_candidates_kernel(
    logits, barred, generated, values, tokens, largest, total, size, beams, minimum, end,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Find the COUNT highest logits among BLOCK tokens of one row; equal ones in the order of their ids.

    logits: reads (rows, size).
    barred: reads (size,), 1 for tokens that are forbidden in every row.
    generated: reads (rows / beams,), the number of tokens of each output. The token `end` is forbidden if the
        output would have fewer than `minimum` tokens.
    values, tokens, largest, total: write the tensors of Candidates.
    HALF: whether the logits have 16 bits. Then value and index are combined to one integer, whose maximum
        is faster to find.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    column = block * BLOCK + place
    inside = column < size
    raw = tl.load(logits + row * size + column, mask=inside, other=-float("inf"))
    x = raw.to(tl.float32)
    best = tl.max(x, 0)
    at = row * tl.num_programs(1) + block
    tl.store(largest + at, best)
    tl.store(total + at, tl.sum(tl.where(inside, tl.exp(x - best), 0.0), 0))
    hidden = tl.load(barred + column, mask=inside, other=1) != 0
    hidden = hidden | ((column == end) & (tl.load(generated + row // beams) + 1 < minimum))
    if HALF:
        bits = tl.where(x == 0.0, 0, raw.to(tl.int16, bitcast=True).to(tl.int32))  # -0.0 is equal to 0.0
        # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
        ascending = bits ^ ((bits >> 15) & 0x7FFF)
        key = tl.where(hidden, -0x80000000, ascending * BLOCK + (BLOCK - 1 - place))
        for number in tl.static_range(COUNT):
            top = tl.max(key, 0)
            missing = top == -0x80000000
            ascending_top = top >> BITS
            bits_top = ascending_top ^ ((ascending_top >> 15) & 0x7FFF)
            value = bits_top.to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
            index = BLOCK - 1 - (top & (BLOCK - 1))
            tl.store(values + at * COUNT + number, tl.where(missing, -float("inf"), value))
            tl.store(tokens + at * COUNT + number, block * BLOCK + tl.where(missing, 0, index))
            key = tl.where(key == top, -0x80000000, key)
    else:
        x = tl.where(hidden, -float("inf"), x)
        for number in tl.static_range(COUNT):
            value, index = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
            tl.store(values + at * COUNT + number, value)
            tl.store(tokens + at * COUNT + number, block * BLOCK + index)
            x = tl.where(place == index, -float("inf"), x)


def find_candidates(
    logits: Tensor, count: int, barred: Tensor, generated: Tensor, minimum: int, end: int
) -> Candidates:
    """Return the `count` highest logits of each block of the vocabulary, for each row; see Candidates.

    logits: (rows, V).
    count: the time of the kernel is proportional to it.
    barred: (V,), uint8, 1 for tokens that are forbidden in every row.
    generated: (slots,), int64, the number of tokens of each output. A slot has rows / slots rows.
    minimum: the token `end` is forbidden if an output would have fewer tokens than this.

    If tokens have equal logits, those with the lowest ids are included.
    """
    rows, size = logits.shape
    logits, block = logits.contiguous(), SMALLEST_BLOCK
    while block < LARGEST_BLOCK and triton.cdiv(size, block) * count > MOST_LANES:
        block *= 2
    blocks = triton.cdiv(size, block)
    values = logits.new_empty(rows, blocks, count, dtype=torch.float32)
    tokens = logits.new_empty(rows, blocks, count, dtype=torch.int32)
    largest, total = (logits.new_empty(rows, blocks, dtype=torch.float32) for _ in range(2))
    if rows:
        token_candidates_kernel[(rows, blocks)](
            logits, barred, generated, values, tokens, largest, total,
            size, rows // len(generated), minimum, end,
            COUNT=count, BLOCK=block, BITS=block.bit_length() - 1, HALF=logits.itemsize == 2,
            num_warps=max(1, block * WARPS // 1024),
        )  # fmt: skip
    return Candidates(values, tokens, largest, total)
