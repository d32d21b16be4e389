# mypy: disable-error-code="no-untyped-def"
"""Backward pass, part 2: gradients of query, key and vector from the gradient of the scores.

The gradient of the query is a sum over the keys; the gradient of the key is a sum over the queries. In this
file, "own side" means the tensor whose gradient is computed: the query or the key. "Other side" means the
tensor of the two whose rows are summed over. Each thread computes four channels of four rows of the own side.
It loops over the rows of the other side, so no sum is divided between threads. There are no atomics, so
results are reproducible bit by bit.

Symbols in this file: g is the gradient of v . tanh(q + k), the score without the factor `scale`;
r = 1 / (1 + e^2q e^2k), so that tanh(q + k) = 1 - 2 r; "exponentials" are e^2q and e^2k. The sums
are computed from u = SCALE (r - 1/2): u^2 - CENTRE^2 = -SCALE^2 (r - r^2). With u, limited denominators need
no more instructions than others; see tanh.py.

If a channel of a program is wide in the sequence (see tanh.py), the program calls write_wide_query() or
write_wide_key() for the whole channel. They compute r from q + k, so the elements can have any size.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.additive.scores import up_to_four
from regard.kernels.mask import end_of, tile_is_seen
from regard.kernels.tanh import (
    CENTRE,
    FLOOR,
    LIMIT,
    denominator,
    exact_share,
    furthest,
    is_wide,
    lowest,
    multiply_add,
    packed,
    reciprocal,
)

__all__ = [
    "additive_key_backward_kernel",
    "additive_query_backward_kernel",
    "wide_channel",
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
    own, others, other_step, gradients, step, fixed, begin, first, last, queries, end,
    start, left, right,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    QUERY: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return the sums of g (r - 1/2) and of g (r - r^2) in one wide channel, from q + k, (own rows,).

    own: the elements of the own side in this channel, q if QUERY is True, otherwise k, (own rows,).
    others: pointer to row 0 of the other side in this channel, with row stride `other_step`.
    gradients: pointers to g of the own rows and row 0 of the other side, (own rows,), with row stride `step`.
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
        slopes += tl.sum(tl.where(used[:, None], g * (r - r * r), 0.0), 0)
    return shares, slopes


@triton.jit
def write_wide_query(
    query, key, vector, turned, dquery, dvector, program, whole_of_query, whole_of_key,
    query_row, key_row, step, dvector_row, local, row, row_count, width, pitch, first_tile,
    last_tile, last, end, start, left, right,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Write dq and partial sums of dv in the wide channels of a program of additive_query_backward_kernel.

    The arguments have the same meaning as there. Pointers point to the current head, sequence and part.
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
                row // ROWS * ROWS, 0, first_tile, last_tile, last, end, start, left, right,
                ROWS, COLUMNS, LEFT, RIGHT, True, APPROXIMATE,
            )  # fmt: skip
            slope *= 4.0 * tl.load(vector + channel).to(tl.float32)
            place = dquery + (local + rows).to(tl.int64) * width + channel
            tl.store(place, slope, mask=local + rows < row_count)
            parts = tl.arange(0, FOURS)
            # All in the first, 0 in the others.
            sums = tl.where(parts == 0, -2.0 * tl.sum(share, 0), 0.0)
            tl.store(dvector + (program * FOURS + parts) * dvector_row + channel, sums)


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
                    dscores + both * dscores_head + rows - first_row * step, step,
                    column, first_row, 0, row_tiles, last, end, start, left, right,
                    ROWS, COLUMNS, LEFT, RIGHT, False, APPROXIMATE,
                )  # fmt: skip
                total += slope * (4.0 * tl.load(vector + head * vector_head + channel).to(tl.float32))
            place = dkey + (key_both * keys + rows) * width + channel
            if ADD:
                total += tl.load(place, mask=rows < keys, other=0.0)
            tl.store(place, total, mask=rows < keys)


@triton.jit
def _four(at, step, number, bound, there, otherwise):
    """Load four consecutive rows as float32, (LANES, 4 channels, 4 rows).

    at: pointers to the first of the four rows, (LANES, 4 channels).
    step: row stride.
    number: index of the first of the four rows.
    bound: number of rows; rows with this index or a larger one are not loaded.
    there: whether the channel exists; channels where it is False are not loaded.
    otherwise: value of the elements that are not loaded.
    """
    a = tl.load(at, mask=there & (number < bound), other=otherwise).to(tl.float32)
    b = tl.load(at + step, mask=there & (number + 1 < bound), other=otherwise).to(tl.float32)
    c = tl.load(at + 2 * step, mask=there & (number + 2 < bound), other=otherwise).to(tl.float32)
    d = tl.load(at + 3 * step, mask=there & (number + 3 < bound), other=otherwise).to(tl.float32)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [at.shape[0], 4, 4])


@triton.jit
def _lanes(pitch, zero, LANES: tl.constexpr, FOURS: tl.constexpr):
    """Return the indices of the four channels and four rows for which each lane (thread) computes gradients.

    The lanes are divided into FOURS groups. Each group computes gradients for four rows. For the gradient of
    the query, all groups load the same rows of the key. For the gradient of the key, they load the same rows
    of the query.

    pitch: row stride of the exponentials, a multiple of 4.
    zero: always 0. It is an argument, so that the compiler does not know this value. With a constant 0, the
        compiler would let the threads exchange gradients. As it is, each thread loads the gradients of its
        own rows.

    Returns four tensors:
    1. the channels, (LANES, 4);
    2. the channels to load, (LANES, 4): equal to the channels in 1, except that the last four channels of the
       row replace channels beyond the end of the row;
    3. the first of the four rows, (LANES, 1);
    4. all four rows, (LANES, 4).
    """
    lane, four = tl.arange(0, LANES), tl.arange(0, 4)[None, :]
    ACROSS: tl.constexpr = LANES // FOURS
    across = tl.program_id(1) * ACROSS + lane % ACROSS
    first = (lane // ACROSS * 4)[:, None]
    within = tl.minimum(across, pitch // 4 - 1)[:, None] * 4 + four
    return across[:, None] * 4 + four, within, first, first + (lane * zero * 4)[:, None] + four


@triton.jit
def _zeros(LANES: tl.constexpr):
    return tl.zeros([LANES, 4, 4], tl.float32)


@triton.jit
def _pair(others, gradients, wide, step):
    """Load the exponentials of two rows of the other side, and the gradients g of their scores.

    The other side is the key if the gradient of the query is computed, and vice versa.

    others: pointers to the exponentials of the first row, with row stride `wide`.
    gradients: pointers to g for the first row of the other side: one pointer for each of the four own rows of
        a thread. `step` is the distance, in elements, to g for the next row of the other side.

    Returns the exponentials of the first and the second row, then g of the first and the second row.
    """
    return tl.load(others), tl.load(others + wide), tl.load(gradients), tl.load(gradients + step)


@triton.jit
def _added(
    shares, slopes, mine, first, second, g, g2, SHARES: tl.constexpr, APPROXIMATE: tl.constexpr
):  # fmt: skip
    """Add the terms of two rows of the other side to the accumulators `shares` and `slopes`.

    If the gradient of the query is computed, the own side is the query, and the other side is the key; if the
    gradient of the key is computed, vice versa. r is computed for both rows with one reciprocal.

    slopes: -SCALE^2 g (r - r^2) is added to it.
    shares: if SHARES is True, SCALE g (r - 1/2) is added to it.
    mine: exponentials of the own rows, e^2q or e^2k.
    first, second: exponentials of the first and the second row of the other side.
    g, g2: gradients of the scores of the first and of the second row.
    """
    x = denominator(mine, first[:, :, None], APPROXIMATE)
    y = denominator(mine, second[:, :, None], APPROXIMATE)
    both = reciprocal(x * y, APPROXIMATE)
    u = multiply_add(both, y, -CENTRE, APPROXIMATE)
    u2 = multiply_add(both, x, -CENTRE, APPROXIMATE)
    g, g2 = g[:, None, :], g2[:, None, :]
    if SHARES:
        shares += g * u
    slopes += g * multiply_add(u, u, -CENTRE * CENTRE, APPROXIMATE)
    if SHARES:
        shares += g2 * u2
    slopes += g2 * multiply_add(u2, u2, -CENTRE * CENTRE, APPROXIMATE)
    return shares, slopes


@triton.jit
def _walked(
    shares, slopes, mine, others, gradients, wide, step, fours,
    SHARES: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Call _added() for 4 * `fours` rows of the other side, two rows at a time.

    The other side is the key if the gradient of the query is computed, and vice versa.

    shares, slopes, mine: see _added().
    others: pointers to the exponentials of the other side, with row stride `wide`.
    gradients: pointers to g, the gradients of the scores, with row stride `step`.

    Each pair of rows is loaded while the previous pair is used (software pipelining). This hides the latency
    of the loads. Few threads run at once (low occupancy), so switching between threads would not hide it.
    """
    a, a2, g, g2 = _pair(others, gradients, wide, step)
    for four in range(fours):
        at = 4 * four
        b, b2, h, h2 = _pair(others + (at + 2) * wide, gradients + (at + 2) * step, wide, step)
        shares, slopes = _added(shares, slopes, mine, a, a2, g, g2, SHARES, APPROXIMATE)
        at = 4 * tl.minimum(four + 1, fours - 1)
        a, a2, g, g2 = _pair(others + at * wide, gradients + at * step, wide, step)
        shares, slopes = _added(shares, slopes, mine, b, b2, h, h2, SHARES, APPROXIMATE)
    return shares, slopes


@triton.jit(do_not_specialize=["zero"])
def additive_query_backward_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, turned, dquery, dvector,
    reach_of_query, reach_of_key, whole_of_query, whole_of_key, lengths,
    length_step, start, left, right, heads, groups, queries, keys, width, pitch,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head, zero,
    query_tiles, key_tiles, spans, first_row, row_count, parts, part_tiles,
    dscores_head, turned_row, dquery_part, dquery_head, dvector_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr,
    EXACT: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of dq and dv: from 4 * FOURS rows of the query and `part_tiles` tiles of keys.

    dq = sum over keys of 4 v g (r - r^2), where r = 1 / (1 + e^2q e^2k) and g is the gradient of the score
    dv = sum over rows and keys of g (1 - 2 r)

    turned: reads g, transposed, (B H, keys, rows).
    exponentials_of_query, exponentials_of_key: read e^2q and e^2k, in row-major order.
    dquery: writes partial sums, (parts, B H, rows, D).
    dvector: writes one partial sum for each part and group of four rows, (B H, parts * groups of rows, D).
    EXACT: first sum each tile in a separate accumulator, because long float32 sums lose precision.
    whole_of_query, whole_of_key: read which channels are wide; see tanh.py. gradients.py computes them.
    Launch grid: (groups of 4 * FOURS rows, blocks of channels, B H * parts).
    """
    both = tl.program_id(2).to(tl.int64) // parts
    part = tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    key_both = batch * (heads // groups) + head // groups
    local = tl.program_id(0) * 4 * FOURS
    row = first_row + local
    tile = row // ROWS
    channels, within, own, four = _lanes(pitch, zero, LANES, FOURS)
    there = channels < width
    last = first_row + row_count
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    wide, step = tl.full([], 0, tl.int64) + pitch, tl.full([], 0, tl.int64) + turned_row
    at = exponentials_of_query + (both * up_to_four(queries) + row + own) * wide + within
    e = _four(at, wide, row + own, last, there, 0.0)
    key_at = exponentials_of_key + key_both * up_to_four(keys) * wide + within
    largest = furthest(reach_of_query, both * query_tiles + tile, spans)
    gradient_at = turned + both * dscores_head + local + four
    shares, slopes = _zeros(LANES), _zeros(LANES)
    first_tile, last_tile = part * part_tiles, tl.minimum((part + 1) * part_tiles, key_tiles)
    for key_tile in range(first_tile, last_tile):
        column = key_tile * COLUMNS
        if tile_is_seen(tile * ROWS, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            stop = tl.minimum(column + COLUMNS, end)
            of_key = furthest(reach_of_key, key_both * key_tiles + key_tile, spans)
            largest = tl.maximum(largest, of_key)
            share, slope = (_zeros(LANES), _zeros(LANES)) if EXACT else (shares, slopes)
            share, slope = _walked(
                share, slope, e, key_at + column * wide, gradient_at + column * step, wide, step,
                tl.cdiv(stop - column, 4), True, APPROXIMATE,
            )  # fmt: skip
            shares, slopes = (shares + share, slopes + slope) if EXACT else (share, slope)
    v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
    rows = local + own[:, :, None] + tl.arange(0, 4)[None, None, :]
    place = dquery + part * dquery_part + both * dquery_head
    program = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    if largest > LIMIT:
        of_query, of_key = whole_of_query + both * pitch, whole_of_key + key_both * pitch
        there = there & (wide_channel(of_query, of_key, 1, pitch, channels, there) == 0)
        write_wide_query(
            query + batch * query_batch + head * query_head,
            key + batch * key_batch + head // groups * key_head,
            vector + head * vector_head, turned + both * dscores_head, place, dvector,
            program, of_query, of_key, query_row, key_row, step, dvector_row, local, row, row_count, width,
            pitch, first_tile, last_tile, last, end, start, left, right,
            ROWS, COLUMNS, LANES, FOURS, LEFT, RIGHT, APPROXIMATE,
        )  # fmt: skip
    place += rows.to(tl.int64) * width + channels[:, :, None]
    slopes *= v[:, :, None] * (-4.0 * FLOOR * FLOOR)
    tl.store(place, slopes, mask=(rows < row_count) & there[:, :, None])
    place = dvector + (program * FOURS + own // 4) * dvector_row + channels
    tl.store(place, tl.sum(shares, 2) * (-2.0 * FLOOR), mask=there)


@triton.jit(do_not_specialize=["zero"])
def additive_key_backward_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, dscores, dkey,
    reach_of_query, reach_of_key, whole_of_query, whole_of_key, lengths,
    length_step, start, left, right, heads, groups, queries, keys, width, pitch,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head, zero,
    query_tiles, key_tiles, spans, first_row, row_count, dscores_head, dscores_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr,
    EXACT: tl.constexpr, ADD: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute dk for 4 * FOURS keys, from `row_count` rows of the query.

    dk = sum over query rows, and over the query heads that share the key head, of 4 v g (r - r^2),
    where r = 1 / (1 + e^2q e^2k) and g is the gradient of the score

    dscores: reads g, (B H, rows, keys).
    exponentials_of_query, exponentials_of_key: read e^2q and e^2k, in row-major order.
    dkey: writes (B, K, S, D).
    ADD: add to dkey instead of overwriting it.
    EXACT: first sum each tile in a separate accumulator, because long float32 sums lose precision.
    whole_of_query, whole_of_key: read which channels are wide; see tanh.py. gradients.py computes them.
    Launch grid: (groups of 4 * FOURS keys, blocks of channels, B K).
    """
    local = tl.program_id(0) * 4 * FOURS
    column = local // COLUMNS * COLUMNS
    channels, within, own, four = _lanes(pitch, zero, LANES, FOURS)
    there = channels < width
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    wide, step = tl.full([], 0, tl.int64) + pitch, tl.full([], 0, tl.int64) + dscores_row
    at = exponentials_of_key + (key_both * up_to_four(keys) + local + own) * wide + within
    e = _four(at, wide, local + own, end, there, 0.0)
    largest = furthest(reach_of_key, key_both * key_tiles + column // COLUMNS, spans)
    row_tiles = tl.cdiv(row_count, ROWS)
    found = _zeros(LANES)
    for group in range(groups):
        head = key_head_here * groups + group
        both = batch * heads + head
        query_at = exponentials_of_query + both * up_to_four(queries) * wide + within
        gradient_at = dscores + both * dscores_head + local - first_row * step + four
        slopes = _zeros(LANES)
        for tile in range(row_tiles):
            row = first_row + tile * ROWS
            if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
                stop = tl.minimum(row + ROWS, last)
                of_query = furthest(reach_of_query, both * query_tiles + row // ROWS, spans)
                largest = tl.maximum(largest, of_query)
                slope = _zeros(LANES) if EXACT else slopes
                _, slope = _walked(
                    slope, slope, e, query_at + row * wide, gradient_at + row * step, wide, step,
                    tl.cdiv(stop - row, 4), False, APPROXIMATE,
                )  # fmt: skip
                slopes = slopes + slope if EXACT else slope
        v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
        found += slopes * (v[:, :, None] * (-4.0 * FLOOR * FLOOR))
    if largest > LIMIT:
        of_key = whole_of_key + key_both * pitch
        of_query = whole_of_query + (batch * heads + key_head_here * groups) * pitch
        there = there & (wide_channel(of_query, of_key, groups, pitch, channels, there) == 0)
        write_wide_key(
            query, key + batch * key_batch + key_head_here * key_head, vector, dscores, dkey,
            of_query, of_key, batch, key_both, key_head_here, heads, groups,
            query_batch, query_head, query_row, key_row, vector_head, dscores_head, step,
            local, column, first_row, keys, width, pitch, row_tiles,
            last, end, start, left, right,
            ROWS, COLUMNS, LANES, FOURS, LEFT, RIGHT, ADD, APPROXIMATE,
        )  # fmt: skip
    rows = local + own[:, :, None] + tl.arange(0, 4)[None, None, :]
    place = dkey + (key_both * keys + rows) * width + channels[:, :, None]
    wanted = (rows < keys) & there[:, :, None]
    if ADD:
        found += tl.load(place, mask=wanted, other=0.0)
    tl.store(place, found, mask=wanted)
