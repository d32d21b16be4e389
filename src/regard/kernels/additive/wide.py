# mypy: disable-error-code="no-untyped-def"
"""Gradients of query, key and vector in wide channels; see tanh.py. backward_kernels.py computes the others.

A program of backward_kernels.py or joint_kernels.py computes gradients of a block of channels. If a
channel of the block is wide in the sequence, the program calls the functions of this file for the whole
channel. They compute r from q + k, so the elements can have any size. As in backward_kernels.py, "own side"
means the tensor whose gradient is computed, g is the gradient of v . tanh(q + k), and
r = 1 / (1 + e^2q e^2k).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.mask import tile_is_seen
from regard.kernels.tanh import SCALE, exact_share, is_wide, lowest, packed

__all__ = [
    "wide_channel",
    "write_wide_key",
    "write_wide_query",
]


@triton.jit
def wide_channel(whole_of_query, whole_of_key, groups, pitch, channels, there):
    """Return 1 for wide channels, otherwise 0.

    whole_of_query, whole_of_key: pointers to the flags of additive_prepare_kernel for `groups` query heads,
        in rows of `pitch` channels, and for their key head.
    channels: the channels, as integers of any shape.
    there: whether the channel exists.
    """
    of_key = tl.load(whole_of_key + channels, mask=there, other=0)
    flags = is_wide(tl.load(whole_of_query + channels, mask=there, other=0), of_key, 8)
    for group in range(1, groups):
        of_query = tl.load(whole_of_query + group * pitch + channels, mask=there, other=0)
        flags |= is_wide(of_query, of_key, 8)
    return flags


@triton.jit
def _wide_sums(
    own, others, other_step, gradients, step, partial, partial_step, fixed, begin, first, last, queries, end,
    start, left, right,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    QUERY: tl.constexpr, PARTIAL: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return the sums of g (r - 1/2) and of g (r - r^2) in one wide channel, from q + k, (own rows,).

    own: the elements of the own side in this channel, q if QUERY is True, otherwise k, (own rows,).
    others: pointer to row 0 of the other side in this channel, with row stride `other_step`.
    gradients: pointers to g of the own rows and row 0 of the other side, (own rows,), with row stride `step`.
    partial: if PARTIAL is True, pointer to the partial sums of joint_kernels.py in this channel, with
        row stride `partial_step`; writes -SCALE^2 times the sum of g (r - r^2) over the own rows.
    fixed: first row of the tile of the own side.
    first, last: the tiles of the other side, from `first` to last - 1, counted from row `begin`.
    """
    TILE: tl.constexpr = COLUMNS if QUERY else ROWS
    BLOCK: tl.constexpr = 2048 // own.shape[0]  # rows of many tiles, so that few loads wait for each other
    shares, slopes = tl.zeros([own.shape[0]], tl.float32), tl.zeros([own.shape[0]], tl.float32)
    limit = tl.minimum(end if QUERY else queries, begin + last * TILE)
    for place in range(begin + first * TILE, limit, BLOCK):
        rows = place + tl.arange(0, BLOCK)
        inside = rows < limit
        other = tl.load(others + rows * other_step, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradients[None, :] + rows[:, None] * step, mask=inside[:, None], other=0.0)
        tiles = tl.minimum((rows - begin) // TILE, last - 1)
        row, column = (fixed, begin + tiles * TILE) if QUERY else (begin + tiles * TILE, fixed)
        seen = tile_is_seen(row, column, queries, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT)
        used = seen & inside
        r = exact_share(other[:, None] + own[None, :], APPROXIMATE)
        shares += tl.sum(tl.where(used[:, None], g * (r - 0.5), 0.0), 0)
        slope = tl.where(used[:, None], g * (r - r * r), 0.0)
        slopes += tl.sum(slope, 0)
        if PARTIAL:
            tl.store(partial + rows * partial_step, tl.sum(slope, 1) * (-SCALE * SCALE), mask=used)
    return shares, slopes


@triton.jit
def write_wide_query(
    query, key, vector, turned, dquery, dvector, partial_dkey, program, whole_of_query, whole_of_key,
    query_row, key_row, step, dvector_row, local, row, row_count, width, pitch, first_tile,
    last_tile, last, end, start, left, right,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr,
    SUMS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PARTIAL: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Write dq and partial sums of dv in the wide channels of a program of additive_query_backward_kernel.

    The arguments have the same meaning as there. Pointers point to the current head, sequence and part.
    SUMS: number of partial sums of dv that a program writes.
    partial_dkey: if PARTIAL is True, pointer to the partial sums of dk for key 0; see joint_kernels.py.
    """
    rows = tl.arange(0, 4 * FOURS)
    COUNT: tl.constexpr = LANES // FOURS * 4
    low = tl.program_id(1) * COUNT
    high = tl.minimum(low + COUNT, width)
    for first in range(low, low + COUNT, 64):
        channels = first + tl.arange(0, 64)
        bits = packed(wide_channel(whole_of_query, whole_of_key, 1, pitch, channels, channels < high))
        while bits != 0:
            channel = first + lowest(bits)
            bits &= bits - 1
            at = query + (row + rows).to(tl.int64) * query_row + channel
            q = tl.load(at, mask=row + rows < last, other=0.0).to(tl.float32)
            share, slope = _wide_sums(
                q, key + channel, tl.full([], 0, tl.int64) + key_row, turned + local + rows, step,
                partial_dkey + channel, tl.full([], 0, tl.int64) + pitch,
                row // ROWS * ROWS, 0, first_tile, last_tile, last, end, start, left, right,
                ROWS, COLUMNS, LEFT, RIGHT, True, PARTIAL, APPROXIMATE,
            )  # fmt: skip
            slope *= 4.0 * tl.load(vector + channel).to(tl.float32)
            place = dquery + (local + rows).to(tl.int64) * width + channel
            tl.store(place, slope, mask=local + rows < row_count)
            parts = tl.arange(0, SUMS)
            # All in the first, 0 in the others.
            sums = tl.where(parts == 0, -2.0 * tl.sum(share, 0), 0.0)
            tl.store(dvector + (program * SUMS + parts) * dvector_row + channel, sums)


@triton.jit
def write_wide_key(
    query, key, vector, dscores, dkey, whole_of_query, whole_of_key,
    batch, key_both, key_head, heads, groups, query_batch, query_head, query_row, key_row, vector_head,
    dscores_head, step, local, column, first_row, keys, width, pitch, row_tiles,
    last, end, start, left, right,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, ADD: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Write dk in the wide channels of a program of additive_key_backward_kernel.

    The arguments have the same meaning as there. `key` points to the current head.
    """
    rows = local + tl.arange(0, 4 * FOURS)
    COUNT: tl.constexpr = LANES // FOURS * 4
    low = tl.program_id(1) * COUNT
    high = tl.minimum(low + COUNT, width)
    for first in range(low, low + COUNT, 64):
        channels = first + tl.arange(0, 64)
        bits = packed(wide_channel(whole_of_query, whole_of_key, groups, pitch, channels, channels < high))
        while bits != 0:
            channel = first + lowest(bits)
            bits &= bits - 1
            k = tl.load(key + rows.to(tl.int64) * key_row + channel, mask=rows < end, other=0.0)
            total = tl.zeros([4 * FOURS], tl.float32)
            for group in range(groups):
                head = key_head * groups + group
                both = batch * heads + head
                _, slope = _wide_sums(
                    k.to(tl.float32), query + batch * query_batch + head * query_head + channel,
                    tl.full([], 0, tl.int64) + query_row,
                    dscores + both * dscores_head + rows - first_row * step, step, dkey, step,
                    column, first_row, 0, row_tiles, last, end, start, left, right,
                    ROWS, COLUMNS, LEFT, RIGHT, False, False, APPROXIMATE,
                )  # fmt: skip
                total += slope * (4.0 * tl.load(vector + head * vector_head + channel).to(tl.float32))
            place = dkey + (key_both * keys + rows) * width + channel
            if ADD:
                total += tl.load(place, mask=rows < keys, other=0.0)
            tl.store(place, total, mask=rows < keys)
