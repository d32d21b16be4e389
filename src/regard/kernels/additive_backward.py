# mypy: disable-error-code="no-untyped-def"
"""The way back: from the gradient of the output to those of query, key, value and vector.

additive_weigh_kernel and additive_balance_kernel find the gradient of the scores, which is small beside
B x T x S x D. In the kernels of query and key a thread owns one channel of SOME rows and walks over keys, or
over queries, so that no sum crosses threads and none is made with atomics: two runs give the same bits.
channel_step is 1: not knowing it, the compiler gives a thread one channel, where it would give it eight and
load them together.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.product import product
from regard.kernels.sight import tile_is_seen, visible
from regard.kernels.tanh import BITS, TWICE_LOG2E, exact_share, reciprocal

__all__ = [
    "additive_balance_kernel",
    "additive_key_backward_kernel",
    "additive_query_backward_kernel",
    "additive_value_backward_kernel",
    "additive_weigh_kernel",
]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(scores, norm, place, size, there, seen):
    """exp(score - level) over the total, 0 where hidden; exp(score - lse) would add the lse's rounding."""
    level = tl.load(norm + place, mask=there, other=0.0)
    inverse = tl.load(norm + size + place, mask=there, other=0.0)
    found = tl.exp2((tl.where(seen, scores, 0.0) - level[:, None]) * LOG2E) * inverse[:, None]
    return tl.where(seen, found, 0.0)


@triton.jit
def additive_weigh_kernel(
    scores, norm, value, doutput, dscores, deltas, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count,
    value_batch, value_head, value_row, doutput_batch, doutput_head, doutput_row,
    scores_head, scores_row, dscores_head, dscores_row, key_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    EIGHTS: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights, dO . value, in whole tiles; and for each row and tile what its weights
    make of it, (B H, key tiles, rows), which additive_balance_kernel needs the sum of."""
    if EIGHTS:
        depth, value_row, doutput_row = depth // 8 * 8, value_row // 8 * 8, doutput_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    both = tl.program_id(2).to(tl.int64)
    batch, head = both // heads, both % heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last = first_row + row_count
    end = tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        value_at = value + batch * value_batch + head // groups * value_head
        value_at += columns.to(tl.int64)[None, :] * value_row
        doutput_at = doutput + batch * doutput_batch + head * doutput_head
        doutput_at += rows.to(tl.int64)[:, None] * doutput_row
        dweights = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(0, depth, DEPTH):
            channels = first + tl.arange(0, DEPTH)
            of_output = tl.load(
                doutput_at + channels[None, :],
                mask=(rows < last)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            values = tl.load(
                value_at + channels[:, None],
                mask=(channels < depth)[:, None] & (columns < end)[None, :], other=0.0,
            )  # fmt: skip
            dweights = product(of_output, values, dweights, PRECISION)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + at, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        dweights = tl.where(seen, dweights, 0.0)
        at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
        tl.store(dscores + at, dweights)
        rows_whole = tl.num_programs(0) * ROWS
        tl.store(
            deltas + (both * key_tiles + tl.program_id(1)) * rows_whole + local, tl.sum(weights * dweights, 1)
        )


@triton.jit
def additive_balance_kernel(
    scores, norm, dscores, turned, deltas, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, scale, first_row, row_count,
    scores_head, scores_row, dscores_head, dscores_row, turned_row, key_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores before the temperature, in place of that of the weights: weight * (dweight -
    the sum of weight * dweight over the row) * scale; and the same turned, (B H, keys, rows)."""
    both = tl.program_id(2).to(tl.int64)
    batch = both // heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last = first_row + row_count
    end = tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys
    at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        delta = tl.zeros([ROWS], tl.float32)
        rows_whole = tl.num_programs(0) * ROWS
        for tile in range(key_tiles):
            if tile_is_seen(row, tile * COLUMNS, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
                delta += tl.load(deltas + (both * key_tiles + tile) * rows_whole + local)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        of_scores = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + of_scores, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        found = tl.where(seen, weights * (tl.load(dscores + at) - delta[:, None]) * scale, 0.0)
        tl.store(dscores + at, found)
        if TURNED:
            place = both * dscores_head + columns.to(tl.int64)[:, None] * turned_row + local[None, :]
            tl.store(turned + place, tl.trans(found))
    elif not TURNED:  # what is not turned is read whole
        tl.store(dscores + at, tl.zeros([ROWS, COLUMNS], tl.float32))


@triton.jit
def additive_value_backward_kernel(
    scores, norm, doutput, dvalue, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count,
    doutput_batch, doutput_head, doutput_row, scores_head, scores_row, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """The gradient of some values from some rows: weights turned, times dO. ADD to what is there?"""
    if EIGHTS:
        depth, doutput_row = depth // 8 * 8, doutput_row // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    column = tl.program_id(0) * COLUMNS
    columns = column + tl.arange(0, COLUMNS)
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys
    found = tl.zeros([COLUMNS, DEPTH], tl.float32)
    tiles = tl.cdiv(row_count, ROWS)
    for step in range(groups * tiles):
        head, tile = key_head_here * groups + step // tiles, step % tiles
        both = batch * heads + head
        row = first_row + tile * ROWS
        if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            local = tile * ROWS + tl.arange(0, ROWS)
            rows = first_row + local
            seen = visible(
                rows, columns, last, end, start, left, right,
                document_of_query + batch * documents_query_step,
                document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
            scored = tl.load(scores + at, mask=seen, other=0.0)
            weights = _weights(scored, norm, both * queries + rows, size, rows < last, seen)
            doutput_at = doutput + batch * doutput_batch + head * doutput_head
            of_output = tl.load(
                doutput_at + rows.to(tl.int64)[:, None] * doutput_row + channels[None, :],
                mask=(rows < last)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            turned = tl.trans(weights.to(of_output.dtype))
            found = product(turned, of_output, found, PRECISION)
    place = dvalue + (key_both * keys + columns)[:, None] * depth + channels[None, :]
    inside = (columns < keys)[:, None] & (channels < depth)[None, :]
    if ADD:
        found += tl.load(place, mask=inside, other=0.0)
    tl.store(place, found, mask=inside)


@triton.jit
def _two_shares(mine, first, second, APPROXIMATE: tl.constexpr):
    """r of every row of `mine` with each of two others, from their exponentials, by one reciprocal."""
    x = 1.0 + mine * first[None, :]
    y = 1.0 + mine * second[None, :]
    both = reciprocal(x * y, APPROXIMATE)
    return both * y, both * x


@triton.jit(do_not_specialize=["channel_step"])
def additive_query_backward_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, turned, dquery, dvector,
    reach_of_query, reach_of_key, lengths,
    length_step, start, left, right, heads, groups, queries, keys, width,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head, channel_step,
    query_tiles, key_tiles, first_row, row_count, parts, part_tiles,
    dscores_head, turned_row, dquery_part, dquery_head, dvector_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SOME: tl.constexpr, WIDTH: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The gradient of SOME rows of the query, a part of a tile of ROWS, over part_tiles tiles of keys.

    With g the gradient of a score, dq is the sum of 4 v g (r - r^2) over the keys, and dv that of -2 g r over
    rows and keys, since the g of a row add up to 0. dvector: one row a program, to be summed.
    """
    both = tl.program_id(2).to(tl.int64) // parts
    part = tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    key_both = batch * (heads // groups) + head // groups
    local = tl.program_id(0) * SOME + tl.arange(0, SOME)
    rows = first_row + local
    tile = (first_row + tl.program_id(0) * SOME) // ROWS
    channels = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)) * channel_step
    there = channels < width
    last = first_row + row_count
    end = tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys
    inside = (rows < last)[:, None] & there[None, :]
    at = exponentials_of_query + (both * queries + rows)[:, None] * width + channels[None, :]
    e = tl.load(at, mask=inside, other=1.0)
    wide = tl.full([], 0, tl.int64) + width
    key_at = exponentials_of_key + key_both * keys * wide + channels
    far = tl.load(reach_of_query + both * query_tiles + tile)
    turned_step = tl.full([], 0, tl.int64) + turned_row
    gradient_at = turned + both * dscores_head + local
    shares = tl.zeros([SOME, WIDTH], tl.float32)
    slopes = tl.zeros([SOME, WIDTH], tl.float32)
    for key_tile in range(part * part_tiles, tl.minimum((part + 1) * part_tiles, key_tiles)):
        column = key_tile * COLUMNS
        if tile_is_seen(tile * ROWS, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            stop = tl.minimum(column + COLUMNS, end)
            reach = far + tl.load(reach_of_key + key_both * key_tiles + key_tile)
            if reach * (2.0 * TWICE_LOG2E) <= BITS:
                for j in range(column, stop, 2):
                    first = tl.load(key_at + j * wide, mask=there, other=1.0)
                    second = tl.load(key_at + (j + 1) * wide, mask=there & (j + 1 < stop), other=1.0)
                    r, r2 = _two_shares(e, first, second, APPROXIMATE)
                    g = tl.load(gradient_at + j * turned_step)[:, None]
                    shares += g * r
                    slopes += g * (r - r * r)
                    g = tl.load(gradient_at + (j + 1) * turned_step)[:, None]
                    shares += g * r2
                    slopes += g * (r2 - r2 * r2)
            else:
                query_at = query + batch * query_batch + head * query_head
                query_at += rows.to(tl.int64)[:, None] * query_row + channels[None, :]
                q = tl.load(query_at, mask=inside, other=0.0).to(tl.float32)
                plain = key + batch * key_batch + head // groups * key_head + channels
                key_step = tl.full([], 0, tl.int64) + key_row
                for j in range(column, stop):
                    k = tl.load(plain + j * key_step, mask=there, other=0.0).to(tl.float32)
                    r = exact_share(q + k[None, :], APPROXIMATE)
                    g = tl.load(gradient_at + j * turned_step)[:, None]
                    shares += g * r
                    slopes += g * (r - r * r)
    v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
    place = dquery + part * dquery_part + both * dquery_head
    place += local.to(tl.int64)[:, None] * width + channels[None, :]
    tl.store(place, 4.0 * v[None, :] * slopes, mask=(local < row_count)[:, None] & there[None, :])
    program = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(dvector + program * dvector_row + channels, -2.0 * tl.sum(shares, 0), mask=there)


@triton.jit(do_not_specialize=["channel_step"])
def additive_key_backward_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, dscores, dkey,
    reach_of_query, reach_of_key, lengths,
    length_step, start, left, right, heads, groups, queries, keys, width,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head, channel_step,
    query_tiles, key_tiles, first_row, row_count, dscores_head, dscores_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SOME: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The gradient of SOME keys, a part of a tile, from some rows. ADD to what is there?"""
    columns = tl.program_id(0) * SOME + tl.arange(0, SOME)
    column = tl.program_id(0) * SOME // COLUMNS * COLUMNS
    channels = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)) * channel_step
    there = channels < width
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys
    inside = (columns < end)[:, None] & there[None, :]
    at = exponentials_of_key + (key_both * keys + columns)[:, None] * width + channels[None, :]
    e = tl.load(at, mask=inside, other=1.0)
    wide, step = tl.full([], 0, tl.int64) + width, tl.full([], 0, tl.int64) + dscores_row
    far = tl.load(reach_of_key + key_both * key_tiles + column // COLUMNS)
    found = tl.zeros([SOME, WIDTH], tl.float32)
    for group in range(groups):
        head = key_head_here * groups + group
        both = batch * heads + head
        query_at = exponentials_of_query + both * queries * wide + channels
        gradient_at = dscores + both * dscores_head + columns - first_row * step
        of_head = tl.zeros([SOME, WIDTH], tl.float32)
        for tile in range(tl.cdiv(row_count, ROWS)):
            row = first_row + tile * ROWS
            if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
                stop = tl.minimum(row + ROWS, last)
                reach = far + tl.load(reach_of_query + both * query_tiles + row // ROWS)
                if reach * (2.0 * TWICE_LOG2E) <= BITS:
                    for i in range(row, stop, 2):
                        first = tl.load(query_at + i * wide, mask=there, other=1.0)
                        second = tl.load(query_at + (i + 1) * wide, mask=there & (i + 1 < stop), other=1.0)
                        r, r2 = _two_shares(e, first, second, APPROXIMATE)
                        of_head += tl.load(gradient_at + i * step)[:, None] * (r - r * r)
                        of_head += tl.load(gradient_at + (i + 1) * step)[:, None] * (r2 - r2 * r2)
                else:
                    key_at = key + batch * key_batch + key_head_here * key_head + channels[None, :]
                    key_at += columns.to(tl.int64)[:, None] * key_row
                    k = tl.load(key_at, mask=inside, other=0.0).to(tl.float32)
                    plain = query + batch * query_batch + head * query_head + channels
                    query_step = tl.full([], 0, tl.int64) + query_row
                    for i in range(row, stop):
                        q = tl.load(plain + i * query_step, mask=there, other=0.0).to(tl.float32)
                        r = exact_share(q[None, :] + k, APPROXIMATE)
                        of_head += tl.load(gradient_at + i * step)[:, None] * (r - r * r)
        v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
        found += 4.0 * v[None, :] * of_head
    place = dkey + (key_both * keys + columns)[:, None] * width + channels[None, :]
    wanted = (columns < keys)[:, None] & there[None, :]
    if ADD:
        found += tl.load(place, mask=wanted, other=0.0)
    tl.store(place, found, mask=wanted)
