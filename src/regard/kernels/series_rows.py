# mypy: disable-error-code="no-untyped-def"
"""Which rows of the other side additive_series_kernel processes: those in the window and within REACH.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.tanh import furthest

__all__ = ["REACH", "near_rows", "window_rows"]

REACH = tl.constexpr(10.0)
"""The Fourier series approximates tanh(q + k) for |q + k| <= REACH."""


@triton.jit
def near_rows(
    reach_of_own, reach_of_other, spans, ROWS: tl.constexpr, own_count, low, high,
    OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Return the range of rows of the other side outside which no tile is within REACH.

    A tile is within REACH if its largest |q| + largest |k| is at most REACH. In the other tiles, the gradient
    of the scores that the caller reads is 0. The range is empty if there is no tile within REACH.

    reach_of_own, reach_of_other: pointers to the largest |element| of each tile and span, (tiles, spans).
    ROWS, own_count: number of rows of this program, and of all rows of the own side.
    low, high: the range of rows of the other side to begin with.
    OWN, OTHER: number of rows of a tile.
    """
    first = tl.program_id(0) * ROWS
    smallest = furthest(reach_of_own, first // OWN, spans)
    for tile in range(first // OWN + 1, tl.cdiv(tl.minimum(first + ROWS, own_count), OWN)):
        of_tile = furthest(reach_of_own, tile, spans)
        smallest = tl.where(of_tile < smallest, of_tile, smallest)
    from_row, to_row = high, low
    for block in range(low // OTHER, tl.cdiv(high, OTHER), 64):
        tiles = block + tl.arange(0, 64)
        inside = tiles < tl.cdiv(high, OTHER)
        reach = tl.zeros([64], tl.float32)
        for span in range(spans):
            of_span = tl.load(reach_of_other + tiles * spans + span, mask=inside, other=float("inf"))
            reach = tl.maximum(reach, of_span)
        near = inside & (smallest + reach <= REACH)
        from_row = tl.minimum(from_row, tl.min(tl.where(near, tiles * OTHER, high), 0))
        to_row = tl.maximum(to_row, tl.max(tl.where(near, (tiles + 1) * OTHER, low), 0))
    return tl.maximum(from_row, low), tl.minimum(to_row, high)


@triton.jit
def window_rows(
    count, offset, before, after, BEFORE: tl.constexpr, AFTER: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return the range of the `count` rows of the other side that the window leaves visible to a program."""
    low, high, begin = 0, count, tl.program_id(0) * ROWS + offset
    if BEFORE:
        low = tl.maximum(begin - before, 0) // COLUMNS * COLUMNS
    if AFTER:
        high = tl.minimum(high, begin + ROWS + after)
    return low, high
