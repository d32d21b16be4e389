# mypy: disable-error-code="no-untyped-def"
"""Backward pass, part 2, for half precision: gradients of query, key and vector in one pass over the scores.

gradients.py computes r = 1 / (1 + e^2q e^2k) twice, once for the gradient of the query and once for
that of the key. Here it is computed once. Each thread has two channels of sixteen rows of the query, and
loops over the keys. It sums the gradient of the query over the keys, and for each key that of the key over
its sixteen rows. The latter is written as a partial sum; additive_key_sum_kernel adds the partial sums of all
rows in float32. gradients.py computes both in wide channels. There are no atomics, so results are
reproducible bit by bit.

The symbols are those of gradients.py.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.additive.forward import Prepared
from regard.kernels.additive.gradients import wide_channel, write_wide_query
from regard.kernels.additive.scores import up_to_four
from regard.kernels.additive.tile_sizes import Shape
from regard.kernels.launch import up
from regard.kernels.mask import end_of, tile_is_seen
from regard.kernels.tanh import CENTRE, FLOOR, LIMIT, denominator, furthest, multiply_add, reciprocal

if TYPE_CHECKING:
    from regard.kernels.additive.backward import Backward, Weighed

__all__ = [
    "additive_gradients_kernel",
    "additive_key_sum_kernel",
    "fills_groups",
    "joint_gradients",
    "rows_at_once",
]

GROUP = tl.constexpr(16)
"""Number of rows of the query of a thread. Each group of this many rows has its own partial sums."""


@triton.jit
def _four_rows(at, step, number, bound, there):
    """Load four consecutive rows of exponentials, (LANES, 2 channels, 4 rows).

    at: pointers to the first of the four rows, (LANES, 2 channels), with row stride `step`.
    number, bound: index of the first of the four rows, and number of rows. Others are not loaded.
    there: whether the channel exists.
    """
    a = tl.load(at, mask=there & (number < bound), other=0.0)
    b = tl.load(at + step, mask=there & (number + 1 < bound), other=0.0)
    c = tl.load(at + 2 * step, mask=there & (number + 2 < bound), other=0.0)
    d = tl.load(at + 3 * step, mask=there & (number + 3 < bound), other=0.0)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [at.shape[0], 2, 4])


@triton.jit
def _eight_rows(at, step, number, bound, there):
    """Load eight consecutive rows of exponentials as two times four, see _four_rows()."""
    return (
        _four_rows(at, step, number, bound, there),
        _four_rows(at + 4 * step, step, number + 4, bound, there),
    )


@triton.jit
def _added(slopes, slopes2, of_key, shares, mine, mine2, key, gradients, APPROXIMATE: tl.constexpr):
    """Add the terms of one key and eight rows of the query, as two times four rows.

    Two rows share one reciprocal: 1 / x = y / (x y), and 1 / y = x / (x y).

    slopes, slopes2: -SCALE^2 g (r - r^2) is added to them, for the first and the last four rows.
    of_key: -SCALE^2 g (r - r^2) of all rows is added to it. shares: SCALE g (r - 1/2) of all rows is added.
    mine, mine2: exponentials of the rows. These five are (LANES, 2 channels, 4 rows).
    key: exponentials of the key, (LANES, 2 channels).
    gradients: pointers to g of the key and the first four rows, (LANES, 4).
    """
    x = denominator(mine, key[:, :, None], APPROXIMATE)
    y = denominator(mine2, key[:, :, None], APPROXIMATE)
    both = reciprocal(x * y, APPROXIMATE)
    u = multiply_add(both, y, -CENTRE, APPROXIMATE)
    u2 = multiply_add(both, x, -CENTRE, APPROXIMATE)
    g, g2 = tl.load(gradients)[:, None, :], tl.load(gradients + 4)[:, None, :]
    shares += g * u
    shares += g2 * u2
    slope = multiply_add(u, u, -CENTRE * CENTRE, APPROXIMATE)
    slope2 = multiply_add(u2, u2, -CENTRE * CENTRE, APPROXIMATE)
    slopes += g * slope
    slopes2 += g2 * slope2
    of_key += g * slope
    of_key += g2 * slope2
    return slopes, slopes2, of_key, shares


@triton.jit
def _with_keys(
    dq, dq2, dq3, dq4, shares, e, e2, e3, e4, keys, gradients, partial_dkey, wide, step, first, last, there,
    LANES: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Add the terms of the keys `first` to last - 1, and write the partial sums of their gradients.

    dq, dq2, dq3, dq4, shares: the accumulators, see _added(). e, e2, e3, e4: exponentials of the query.
    keys, partial_dkey: pointers to exponentials and partial sums of key 0, with row stride `wide`.
    gradients: pointers to g of key 0 and the first four rows, with row stride `step`.
    """
    for place in range(first, last):
        k, g = tl.load(keys + place * wide), gradients + place * step
        of_key = tl.zeros([LANES, 2, 4], tl.float32)
        dq, dq2, of_key, shares = _added(dq, dq2, of_key, shares, e, e2, k, g, APPROXIMATE)
        dq3, dq4, of_key, shares = _added(dq3, dq4, of_key, shares, e3, e4, k, g + 8, APPROXIMATE)
        tl.store(partial_dkey + place * wide, tl.sum(of_key, 2), mask=there)
    return dq, dq2, dq3, dq4, shares


@triton.jit(do_not_specialize=["zero"])
def additive_gradients_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, turned, dquery, dvector, partial_dkey,
    reach_of_query, reach_of_key, whole_of_query, whole_of_key, lengths, length_step, start, left,
    right, heads, groups, queries, keys, width, pitch, query_batch, query_head, query_row, key_batch,
    key_head, key_row, vector_head, zero, query_tiles, key_tiles, spans, first_row, row_count,
    parts, part_tiles, dscores_head, turned_row, dquery_part, dquery_head, dvector_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of dq, dk and dv: from GROUP rows of the query and `part_tiles` tiles of keys.

    The arguments are those of additive_query_backward_kernel, and:
    partial_dkey: writes the sum of -SCALE^2 g (r - r^2) over the rows, (groups of rows, B H, S rounded up to
        a multiple of 4, pitch), float32 or bfloat16. Not written: padding and hidden tiles.
    Launch grid: (groups of GROUP rows, blocks of 2 * LANES channels, B H * parts).
    """
    both, part = tl.program_id(2).to(tl.int64) // parts, tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    key_both = batch * (heads // groups) + head // groups
    local = tl.program_id(0) * GROUP
    row, tile = first_row + local, (first_row + local) // ROWS
    lane, two = tl.arange(0, LANES), tl.arange(0, 2)[None, :]
    across = tl.program_id(1) * LANES + lane
    channels = across[:, None] * 2 + two
    within = tl.minimum(across, pitch // 2 - 1)[:, None] * 2 + two
    four = (lane * zero * 4)[:, None] + tl.arange(0, 4)[None, :]  # see _lanes() in gradients.py
    there, program = channels < width, tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    last, end = first_row + row_count, end_of(lengths, length_step, batch, keys, LENGTHS)
    wide, step = tl.full([], 0, tl.int64) + pitch, tl.full([], 0, tl.int64) + turned_row
    at = exponentials_of_query + (both * up_to_four(queries) + row) * wide + within
    e, e2 = _eight_rows(at, wide, row, last, there)
    e3, e4 = _eight_rows(at + 8 * wide, wide, row + 8, last, there)
    key_at = exponentials_of_key + key_both * up_to_four(keys) * wide + within
    first_partial = (tl.program_id(0) * (tl.num_programs(2) // parts) + both) * up_to_four(keys) * wide
    partial_at = partial_dkey + first_partial + within
    gradient_at = turned + both * dscores_head + local + four
    largest = furthest(reach_of_query, both * query_tiles + tile, spans)
    zeros = tl.zeros([LANES, 2, 4], tl.float32)
    dq, dq2, dq3, dq4, shares = zeros, zeros, zeros, zeros, zeros
    first_tile, last_tile = part * part_tiles, tl.minimum((part + 1) * part_tiles, key_tiles)
    for key_tile in range(first_tile, last_tile):
        column = key_tile * COLUMNS
        if tile_is_seen(tile * ROWS, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            of_key = furthest(reach_of_key, key_both * key_tiles + key_tile, spans)
            largest = tl.maximum(largest, of_key)
            dq, dq2, dq3, dq4, shares = _with_keys(
                dq, dq2, dq3, dq4, shares, e, e2, e3, e4, key_at, gradient_at, partial_at, wide, step,
                column, tl.minimum(column + COLUMNS, end), there, LANES, APPROXIMATE,
            )  # fmt: skip
    v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
    place = dquery + part * dquery_part + both * dquery_head
    of_query, of_key = whole_of_query + both * pitch, whole_of_key + key_both * pitch
    may_be_wide = largest > LIMIT
    flags = tl.zeros([LANES, 2], tl.int32)
    if may_be_wide:
        flags = wide_channel(of_query, of_key, 1, pitch, channels, there)
    there, v = there & (flags == 0), v * (-4.0 * FLOOR * FLOOR)
    _write_eight(place, dq, dq2, v, local, row_count, channels, width, there)
    _write_eight(place, dq3, dq4, v, local + 8, row_count, channels, width, there)
    tl.store(dvector + program * dvector_row + channels, tl.sum(shares, 2) * (-2.0 * FLOOR), mask=there)
    if may_be_wide:  # noqa: SIM102
        if tl.max(tl.max(flags, 1), 0) != 0:
            tl.debug_barrier()  # before the partial sums of wide channels are overwritten
            write_wide_query(
                query + batch * query_batch + head * query_head,
                key + batch * key_batch + head // groups * key_head,
                vector + head * vector_head, turned + both * dscores_head, place, dvector,
                partial_dkey + first_partial, program, of_query, of_key, query_row, key_row, step,
                dvector_row, local, row, row_count, width, pitch, first_tile, last_tile, last, end, start,
                left, right,
                ROWS, COLUMNS, 2 * LANES, 4, 1, LEFT, RIGHT, True, APPROXIMATE,
            )  # fmt: skip


@triton.jit
def _write_eight(place, slopes, slopes2, v, first, row_count, channels, width, there):
    """Write eight rows of dq, from row `first` on: two times four rows."""
    rows = first + tl.arange(0, 4)[None, None, :]
    at = place + rows.to(tl.int64) * width + channels[:, :, None]
    tl.store(at, slopes * v[:, :, None], mask=(rows < row_count) & there[:, :, None])
    rows += 4
    at = place + rows.to(tl.int64) * width + channels[:, :, None]
    tl.store(at, slopes2 * v[:, :, None], mask=(rows < row_count) & there[:, :, None])


@triton.jit
def additive_key_sum_kernel(
    vector, partial_dkey, dkey, lengths,
    length_step, start, left, right, heads, groups, keys, width, pitch, vector_head,
    first_row, row_count,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Compute dk for KEYS keys and WIDTH channels, from the partial sums of additive_gradients_kernel.

    The arguments are those of additive_key_backward_kernel and additive_gradients_kernel.
    Launch grid: (groups of KEYS keys, blocks of WIDTH channels, B K).
    """
    local = tl.program_id(0) * KEYS
    column = local // COLUMNS * COLUMNS
    rows, channels = local + tl.arange(0, KEYS), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = channels < width
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    row_tiles = tl.cdiv(row_count, ROWS)
    found = tl.zeros([KEYS, WIDTH], tl.float32)
    inside, seen = (rows < keys)[:, None] & there[None, :], (rows < end)[:, None] & there[None, :]
    sequences = tl.num_programs(2) * groups
    for group in range(groups):
        head = key_head_here * groups + group
        both = batch * heads + head
        total = tl.zeros([KEYS, WIDTH], tl.float32)
        for tile in range(row_tiles):
            row = first_row + tile * ROWS
            if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
                for number in tl.static_range(ROWS // GROUP):  # these loads do not wait for each other
                    part = tile * (ROWS // GROUP) + number
                    at = ((part * sequences + both) * up_to_four(keys) + rows).to(tl.int64) * pitch
                    at = partial_dkey + at[:, None] + channels[None, :]
                    found_here = tl.load(at, mask=seen & (part * GROUP < row_count), other=0.0)
                    total += found_here.to(tl.float32)
        v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
        found += total * (v * (-4.0 * FLOOR * FLOOR))[None, :]
    place = dkey + (key_both * keys + rows)[:, None] * width + channels[None, :]
    if ADD:
        found += tl.load(place, mask=inside, other=0.0)
    tl.store(place, found, mask=inside)


PARTIAL_ROOM = 128 << 20
"""Maximum size in bytes of the partial sums of the gradient of the key. If all queries would need more, some
of them are processed at a time."""

MOST_WASTE = 1.3
"""If the rows of all groups, including empty rows, are at most this many times the queries, one pass is
faster than two."""


def fills_groups(backward: Backward) -> bool:
    """Whether one pass is used: in half precision, unless too many rows of the last group are empty."""
    queries = backward.shape.queries
    return not backward.forward.centred and up(queries, GROUP.value) <= MOST_WASTE * queries


def rows_at_once(backward: Backward, rows: int) -> int:
    """Return how many of `rows` queries are processed at a time: a multiple of the rows of a tile."""
    shape, tile = backward.shape, backward.launch.rows
    group = backward.sequences * up(shape.keys, 4) * shape.pitch * _dtype_of_sums(shape).itemsize
    most = max(tile, PARTIAL_ROOM // group * GROUP.value // tile * tile)
    return up(-(-rows // -(-rows // most)), tile)


def _dtype_of_sums(shape: Shape) -> torch.dtype:
    """Return the dtype of the partial sums of the gradient of the key.

    For bfloat16, they are rounded to bfloat16, which adds an error as large as that of rounding their sum.
    Writing and reading them takes a large part of the time.
    """
    return torch.bfloat16 if shape.dtype == torch.bfloat16 else torch.float32


def joint_gradients(
    backward: Backward, prepared: Prepared, weighed: Weighed, first: int, rows: int
) -> tuple[Tensor, list[Tensor]]:
    """Compute the gradients of query, key and vector from query rows `first` to first + rows - 1.

    The gradient of the key is added to backward.dkey; if `first` is 0, it is written there.

    prepared: e^2q and e^2k, in row-major order.
    weighed: the gradient of v . tanh(q + k) for these rows.

    Returns the gradient of the query as Backward.to_query() does, and partial sums of the gradient of the
    vector v, (B, H, parts, D).
    """
    forward, shape = backward.forward, backward.shape
    warps = min(4, 1 << (-(-shape.pitch // 64) - 1).bit_length())
    blocks = -(-shape.width // (64 * warps))
    most, key_tiles = rows_at_once(backward, rows), shape.tiles[1]
    programs = backward.sequences * -(-min(most, rows) // GROUP.value) * blocks
    parts = shape.key_parts(programs * warps, key_tiles, weighed.turned.device)
    part_tiles = -(-key_tiles // parts)
    parts = -(-key_tiles // part_tiles)
    place = backward.dquery[None, :, :, first : first + rows]
    if parts > 1:
        place = forward.new(parts, *place.shape[1:])
    of_vector: list[Tensor] = []
    for begin in range(0, rows, most):
        count = min(most, rows - begin)
        groups = -(-count // GROUP.value)
        dquery = place[:, :, :, begin : begin + count]
        dvector = forward.new(shape.batch, shape.heads, parts * groups, shape.width)
        sizes = groups, backward.sequences, up(shape.keys, 4), shape.pitch
        partial = weighed.dscores.new_empty(sizes, dtype=_dtype_of_sums(shape))
        turned = weighed.turned[:, :, begin:]
        sums = {
            **forward.sight.by_position(forward.query), "heads": shape.heads, "groups": shape.groups,
            "keys": shape.keys, "width": shape.width, "pitch": shape.pitch,
            "vector_head": forward.sources["vector_head"], "first_row": first + begin,
            "row_count": count, "ROWS": backward.launch.rows, "COLUMNS": backward.launch.columns,
        }  # fmt: skip
        additive_gradients_kernel[(groups, blocks, backward.sequences * parts)](
            forward.query, forward.key, forward.vector, prepared.query, prepared.key, turned, dquery, dvector,
            partial, *forward.split(prepared.reach), *backward.whole(prepared), **forward.sources | sums,
            **forward.tiles,
            queries=shape.queries, zero=0, parts=parts, part_tiles=part_tiles,
            dscores_head=turned.stride(0), turned_row=turned.stride(1),
            dquery_part=dquery.stride(0), dquery_head=dquery.stride(2), dvector_row=shape.width,
            APPROXIMATE=forward.approximate, LANES=32 * warps, num_warps=warps, maxnreg=128,
        )  # fmt: skip
        additive_key_sum_kernel[(-(-shape.keys // 8), -(-shape.width // 128), backward.key_sequences)](
            forward.vector, partial, backward.dkey, **sums,
            KEYS=8, WIDTH=128, ADD=first + begin > 0, num_warps=4,
        )  # fmt: skip
        of_vector.append(dvector)
    return place, of_vector
