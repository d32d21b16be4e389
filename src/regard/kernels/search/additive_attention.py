# mypy: disable-error-code="no-untyped-def"
"""Attention weights of additive attention for all beams of one decoding step, a program for each beam.

additive/decode.py computes scores for one query per sequence. Here, the beams of a source share its keys, and
the softmax is part of the kernel.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["additive_step_weights"]

COLUMNS, WIDTH, WARPS = 4, 512, 4
"""Number of keys and of channels in a tile, and number of warps of a program."""

WEIGHTS = 128
"""Largest number of weights that a program computes from the scores at once."""


@triton.jit
def additive_step_kernel(
    query, keys, vector, lengths, scores, weights, looks, position, beams, count, width, length, query_row,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, WEIGHTS: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Compute softmax(v . tanh(q + k)) of one beam.

    query: reads (rows, width) with the row stride query_row. keys: reads (slots, count, width).
    vector: reads (width,). lengths: reads (slots,), the number of keys of each slot.
    scores: writes and reads (rows, count), float32. weights: writes (rows, count), 0 for padding.
    looks: writes (slots, length, beams, count) at the position of the slot, if LOOK is true: the weights.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row // beams
    end = tl.load(lengths + slot)
    if LOOK:  # at the beginning, so that the program does not wait for the position
        looks += ((slot * length + tl.load(position + slot)) * beams + row % beams) * count
    top, total = -float("inf"), 0.0
    for first in range(0, end, COLUMNS):
        column = (first + tl.arange(0, COLUMNS)).to(tl.int64)
        inside = column < end
        score = tl.zeros([COLUMNS], tl.float32)
        for start in range(0, width, WIDTH):
            channel = start + tl.arange(0, WIDTH)
            there = channel < width
            q = tl.load(query + row * query_row + channel, mask=there, other=0.0).to(tl.float32)
            v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
            at = keys + ((slot * count + column) * width)[:, None] + channel[None, :]
            k = tl.load(at, mask=inside[:, None] & there[None, :], other=0.0).to(tl.float32)
            score += tl.sum(v[None, :] * (2.0 * tl.sigmoid(2.0 * (q[None, :] + k)) - 1.0), 1)
        score = tl.where(inside, score, -float("inf"))
        tl.store(scores + row * count + column, score, mask=inside)
        higher = tl.maximum(top, tl.max(score, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(score - higher), 0)
        top = higher
    tl.debug_barrier()  # all scores are stored
    # Few iterations: the compiler starts no load before the stores of the preceding iteration.
    for first in range(0, count, WEIGHTS):
        column = first + tl.arange(0, WEIGHTS)
        score = tl.load(scores + row * count + column, mask=column < end, other=-float("inf"))
        weight = tl.where(column < end, tl.exp(score - top) / total, 0.0)
        tl.store(weights + row * count + column, weight.to(weights.dtype.element_ty), mask=column < count)
        if LOOK:
            tl.store(looks + column, weight.to(looks.dtype.element_ty), mask=column < count)


def additive_step_weights(
    query: Tensor, keys: Tensor, vector: Tensor, lengths: Tensor, position: Tensor, looks: Tensor | None
) -> Tensor:
    """Return the attention weights of every beam, (slots, beams, S), 0 for padding.

    query: (rows, A), of which rows may be strided; rows = slots * beams.
    keys: (slots, S, A). vector: (A,). lengths: (slots,), the number of source tokens.
    position: (slots,), the position of each slot.
    looks: (slots, L, beams, 1, 1, S). The weights are written to it, at the position of each slot.
        None records nothing.
    """
    (rows, width), (slots, count, _) = query.shape, keys.shape
    beams = rows // slots
    scores = query.new_empty(rows, count, dtype=torch.float32)
    weights = query.new_empty(slots, beams, count)
    additive_step_kernel[(rows,)](
        query, keys, vector, lengths, scores, weights, scores if looks is None else looks, position,
        beams, count, width, 0 if looks is None else looks.shape[1], query.stride(0),
        COLUMNS=COLUMNS, WIDTH=WIDTH, WEIGHTS=min(WEIGHTS, triton.next_power_of_2(count)),
        LOOK=looks is not None, num_warps=WARPS,
    )  # fmt: skip
    return weights
