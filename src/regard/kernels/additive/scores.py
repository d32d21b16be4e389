# mypy: disable-error-code="no-untyped-def"
"""Scores of additive attention in tiles, from exponentials that are computed once per row.

additive_prepare_kernel computes e^2q and e^2k. From these exponentials additive_scores_kernel computes the
scores, scale * v . tanh(q + k).

Each thread computes 4 x 4 scores of a tile and loops over the channels. So each loaded element is used four
times, and no sum is divided between threads. For this access pattern the exponentials are stored in
transposed tiles, (B H, tiles, D, rows of a tile).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.mask import end_of, tile_is_seen
from regard.kernels.tanh import (
    FLOOR,
    LIMIT,
    SCALE,
    TOP,
    TOP_HALF,
    denominator,
    exact_share,
    exponential,
    furthest,
    is_wide,
    limited,
    lowest,
    packed,
    reciprocal,
    shared_sum,
)

__all__ = ["additive_prepare_kernel", "additive_scores_kernel", "up_to_four"]


@triton.jit
def up_to_four(size):
    """Round `size` up to a multiple of 4.

    Exponentials in row-major order have up_to_four(T) or up_to_four(S) rows, because each thread loads four
    rows at a time.
    """
    return (size + 3) // 4 * 4


@triton.jit
def _rows(source, rows, channels, end, width, step):
    """Load these rows and channels in float32; 0 for padding. The arguments are those of _exponentials()."""
    inside = (rows < end)[:, None] & (channels < width)[None, :]
    x = tl.load(source + rows.to(tl.int64)[:, None] * step + channels[None, :], mask=inside, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _sizes(x):
    """Return |x|; inf for NaN."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit
def _write(
    x, place, rows, channels, size, padded, high,
    ROWS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Write the exponentials `x` of these rows and channels; the arguments are those of _exponentials()."""
    if TURNED:
        there = place + channels.to(tl.int64)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        tl.store(there, tl.trans(x), mask=(channels < high)[:, None])
    else:
        at = place + rows.to(tl.int64)[:, None] * padded + channels[None, :]
        tl.store(at, x, mask=(rows < up_to_four(size))[:, None] & (channels < high)[None, :])


@triton.jit
def _exponentials(
    source, place, reach, wide, wide_whole, tile, size, end, width, padded, low, high, step,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write e^2x for the ROWS rows of one tile, where x is an element of query or key.

    Only the channels from `low` to high - 1 are computed. For padding, x = 0.

    source: pointer to the query or key of one sequence and head, (size, D), with row stride `step`.
    end: number of rows without padding: the rows from `end` on are padding.
    width: D, the number of channels.
    padded: the number of channels with padding.
    place: pointer to the result. If TURNED is True, it is a transposed tile, (padded, ROWS). Otherwise it is
        the whole sequence in row-major order, (up_to_four(size), padded).
    reach: pointer to one number, to which the largest |x| is written; inf if there is a NaN.
    wide: pointer to the flags of each channel of the tile, (padded,); used if TURNED is True. See is_wide()
        in tanh.py, with SHIFT = 1.
    wide_whole: the flags for the whole sequence, with SHIFT = 8; used if TURNED is False. Each flag is a
        separate byte, so that several tiles can set flags. Only ones are stored.
    PRECISE: see exponential() in tanh.py.
    """
    rows = tile * ROWS + tl.arange(0, ROWS)
    largest = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(low, high, WIDTH):
        channels = first + tl.arange(0, WIDTH)
        x = _rows(source, rows, channels, end, width, step)
        largest = tl.maximum(largest, _sizes(x))
        x = exponential(limited(x), PRECISE)
        _write(x, place, rows, channels, size, padded, high, ROWS, TURNED)
    furthest_here = tl.max(tl.max(largest, 1), 0)
    tl.store(reach, furthest_here)
    ABOVE: tl.constexpr = TOP if PRECISE else TOP_HALF
    if furthest_here > ABOVE:
        for first in range(low, high, WIDTH):
            channels = first + tl.arange(0, WIDTH)
            x = _rows(source, rows, channels, end, width, step)
            below = tl.max((x < -LIMIT).to(tl.int32), 0)
            above = tl.max((x > ABOVE).to(tl.int32), 0)
            other = tl.max((x != x).to(tl.int32), 0)
            if TURNED:
                tl.store(wide + channels, (below | above << 1 | other << 2).to(tl.int8), mask=channels < high)
            else:  # Several tiles may write the same number to the same place.
                at = (wide_whole + channels).to(tl.pointer_type(tl.int8), bitcast=True)
                tl.store(at, below.to(tl.int8), mask=(channels < high) & (below != 0))
                tl.store(at + 1, above.to(tl.int8), mask=(channels < high) & (above != 0))
                tl.store(at + 2, other.to(tl.int8), mask=(channels < high) & (other != 0))
    elif TURNED:  # Another span may have flags; then the flags of all spans are read.
        for first in range(low, high, WIDTH):
            channels = first + tl.arange(0, WIDTH)
            tl.store(wide + channels, tl.zeros([WIDTH], tl.int8), mask=channels < high)


@triton.jit
def additive_prepare_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, vector_padded,
    reach_of_query, reach_of_key, wide_of_query, wide_of_key, whole_of_query, whole_of_key,
    lengths, length_step, heads, key_heads, queries, keys, width, padded,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head,
    query_programs, key_programs, query_tiles, key_tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    LENGTHS: tl.constexpr, TURNED: tl.constexpr, PRECISE: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute e^2q, e^2k (see exponential() in tanh.py), and -2 v padded with zeros, all in float32.

    Reads query, key and vector. Writes the following tensors; `padded` is D rounded up. If TURNED is True,
    the exponentials are in transposed tiles, otherwise in row-major order.

    exponentials_of_query: (B H, query tiles, padded, ROWS), or (B H, up_to_four(T), padded).
    exponentials_of_key: (B K, key tiles, padded, COLUMNS), or (B K, up_to_four(S), padded).
    vector_padded: (1 or H, padded).
    reach_of_query, reach_of_key: the largest |q| or |k| in each tile and span, (tiles, spans). A span is a
        range of SPAN channels.
    wide_of_query, wide_of_key: if TURNED is True, the flags of each channel of a tile, (tiles, padded), int8;
        see is_wide() in tanh.py.
    whole_of_query, whole_of_key: if TURNED is False, the flags of each channel of the sequence, (B H or B K,
        padded), int32. The caller fills them with zeros.

    EIGHTS: all strides are multiples of 8, so the loads can be vectorised, 8 elements each. Triton itself
        detects only multiples of 16; 1000, for example, is a multiple of 8 but not of 16.
    Launch grid: (tiles of the query + tiles of the key + vectors, spans).
    """
    program, span, spans = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    low, high = span * SPAN, tl.minimum((span + 1) * SPAN, padded)
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    if program >= query_programs + key_programs:
        program -= query_programs + key_programs
        for first in range(low, high, WIDTH):
            channels = first + tl.arange(0, WIDTH)
            v = tl.load(vector + program * vector_head + channels, mask=channels < width, other=0.0)
            v = -2.0 * v.to(tl.float32)
            tl.store(vector_padded + program * padded + channels, v, mask=channels < high)
    elif program < query_programs:
        head, tile = program // query_tiles, program % query_tiles
        source = query + head // heads * query_batch + head % heads * query_head
        place = exponentials_of_query + (
            program * padded * ROWS if TURNED else head * up_to_four(queries) * padded
        )
        _exponentials(
            source, place, reach_of_query + program * spans + span, wide_of_query + program * padded,
            whole_of_query + head * padded, tile, queries, queries, width, padded, low, high, query_row,
            ROWS, WIDTH, TURNED, PRECISE,
        )  # fmt: skip
    else:
        program -= query_programs
        head, tile = program // key_tiles, program % key_tiles
        batch = head // key_heads
        end = end_of(lengths, length_step, batch, keys, LENGTHS)
        source = key + batch * key_batch + head % key_heads * key_head
        place = exponentials_of_key + (
            program * padded * COLUMNS if TURNED else head * up_to_four(keys) * padded
        )
        _exponentials(
            source, place, reach_of_key + program * spans + span, wide_of_key + program * padded,
            whole_of_key + head * padded, tile, keys, end, width, padded, low, high, key_row,
            COLUMNS, WIDTH, TURNED, PRECISE,
        )  # fmt: skip


@triton.jit
def _wide_channels(
    shares, query, key, vector, wide_of_query, wide_of_key, rows, columns,
    row, column, queries, keys, query_row, key_row, low, high, CENTRED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return `shares` with the wide channels from `low` to high - 1 computed from q + k.

    `shares` contains -2 v r, with an r that is wrong in a wide channel. This term is replaced.
    The arguments are those of _summed().
    """
    query_at = query + (row + rows).to(tl.int64) * query_row
    key_at = key + (column + columns).to(tl.int64) * key_row
    for first in range(low, high, 64):
        channels = first + tl.arange(0, 64)
        of_query = tl.load(wide_of_query + channels, mask=channels < high, other=0).to(tl.int32)
        of_key = tl.load(wide_of_key + channels, mask=channels < high, other=0).to(tl.int32)
        bits = packed(is_wide(of_query, of_key, 1))
        while bits != 0:
            at = first + lowest(bits)
            bits &= bits - 1
            q = tl.load(query_at + at, mask=row + rows < queries, other=0.0).to(tl.float32)
            k = tl.load(key_at + at, mask=column + columns < keys, other=0.0).to(tl.float32)
            e, f = exponential(limited(q), CENTRED), exponential(limited(k), CENTRED)
            wrong = denominator(e[:, None, :], f[None, :, :], APPROXIMATE)
            wrong = reciprocal(wrong, APPROXIMATE)
            share = exact_share(q[:, None, :] + k[None, :, :], APPROXIMATE)
            shares += tl.load(vector + at) * (share * SCALE - wrong)
    return shares


@triton.jit
def _summed(
    query, key, vector, exponentials_of_query, exponentials_of_key, reach_of_query, reach_of_key,
    wide_of_query, wide_of_key, rows, columns, row, column, queries, keys, query_row, key_row, low, high,
    scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr,
    CENTRED: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return the sum of scale * v tanh(q + k) over the channels from `low` to high - 1, (4, 4, threads).

    Each thread computes the sums for 4 query rows x 4 keys.

    tanh(q + k) = 1 - 2 r, where r = 1 / (1 + e^2q e^2k).

    query, key: pointers to the sequences, (T, D) and (S, D).
    exponentials_of_query, exponentials_of_key: pointers to the transposed tiles of e^2q and e^2k.
    vector: pointer to -2 v in float32, padded with zeros.
    GROUP: number of channels that share one reciprocal; see shared_sum() in tanh.py.
    reach_of_query, reach_of_key: the largest |q| and the largest |k| of the tile. If one of them is above
        LIMIT, there can be wide channels.
    wide_of_query, wide_of_key: pointers to the flags of the query tile and the key tile, (padded,).
    row, column: first row and first key of the tile.
    rows, columns: the four rows and four keys of each thread, counted from `row` and `column`, (4, threads).
    UNROLL: number of groups of GROUP channels per loop iteration.
    CENTRED: see shared_sum() in tanh.py.
    """
    shares = tl.zeros([4, 4, rows.shape[1]], tl.float32)
    for first in range(low, high, GROUP * UNROLL):
        for unrolled in tl.static_range(UNROLL):
            channel = first + unrolled * GROUP
            shares += shared_sum(
                exponentials_of_query + channel * ROWS + rows,
                exponentials_of_key + channel * COLUMNS + columns,
                vector + channel, ROWS, COLUMNS, GROUP, CENTRED, APPROXIMATE,
            )  # fmt: skip
    if tl.maximum(reach_of_query, reach_of_key) > LIMIT:
        shares = _wide_channels(
            shares, query, key, vector, wide_of_query, wide_of_key,
            rows, columns, row, column, queries, keys, query_row, key_row, low, high, CENTRED, APPROXIMATE,
        )  # fmt: skip
    shares *= FLOOR
    if not CENTRED:
        total = tl.zeros([64], tl.float32)
        for first in range(low, high, 64):
            channels = first + tl.arange(0, 64)
            total += tl.load(vector + channels, mask=channels < high, other=0.0)
        shares -= 0.5 * tl.sum(total, 0)
    return shares * scale


@triton.jit
def _stored(
    found, place, bias, rows_left, columns_left, scores_row, bias_row, bias_column, scale, first,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Store the scores of a tile.

    found: the scores, (4, 4, threads): each thread has the scores of 4 rows x 4 keys.
    place: pointer to the first score of the tile.
    bias: if BIAS is True, pointer to the bias of the first score; scale * bias is added to the scores.
    first: whether this is the first part of the channels. The bias is added to the first part only.
    rows_left, columns_left: the number of rows and keys from the start of the tile to the end of the
        sequence; nothing is stored beyond the end.
    """
    parted = tl.permute(tl.reshape(found, [4, 4, ROWS // 4, COLUMNS // 4]), [2, 0, 3, 1])
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (rows < rows_left) & (columns < columns_left)
    found = tl.reshape(parted, [ROWS, COLUMNS])
    if BIAS:
        at = rows.to(tl.int64) * bias_row + columns.to(tl.int64) * bias_column
        found += tl.load(bias + at, mask=inside & first, other=0.0).to(tl.float32) * scale
    tl.store(place + (rows.to(tl.int64) * scores_row + columns), found, mask=inside)


@triton.jit
def additive_scores_kernel(
    query, key, vector, exponentials_of_query, exponentials_of_key, reach_of_query, reach_of_key,
    wide_of_query, wide_of_key, bias, scores,
    lengths, length_step, start, left, right,
    heads, groups, queries, keys, padded, scale, bias_batch, bias_head, bias_row, bias_column,
    query_batch, query_head, query_row, key_batch, key_head, key_row, vector_head,
    query_tiles, key_tiles, spans, first_tile, parts, part_width,
    scores_part, scores_head, scores_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr,
    BIAS: tl.constexpr, CENTRED: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute scale * v . tanh(q + k) in tiles, for the query tiles from `first_tile` on.

    query, key: read only in wide channels; see tanh.py.
    vector: -2 v, from additive_prepare_kernel.
    exponentials_of_query, exponentials_of_key, reach_of_query, reach_of_key, wide_of_query, wide_of_key: from
        additive_prepare_kernel.
    bias: if BIAS is True, reads a tensor (B, H, T, S), and adds scale * bias to the first part of the scores.
        Its strides can be 0. The bias is -inf where the query must not attend to the key.
    scores: writes (parts, B H, rows, S). Each part is the sum over `part_width` channels.

    Launch grid: (query tiles, key tiles, B H * parts).
    Tiles that the mask hides completely are skipped. In the other tiles, all scores up to the length of the
    sequence are written; additive_read_kernel applies the mask.
    """
    both = tl.program_id(2).to(tl.int64) // parts
    part = tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    key_head_here = head // groups
    tile = first_tile + tl.program_id(0)
    row, column = tile * ROWS, tl.program_id(1) * COLUMNS
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    if tile_is_seen(row, column, queries, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        query_tile = both * query_tiles + tile
        key_tile = (batch * (heads // groups) + key_head_here) * key_tiles + tl.program_id(1)
        low = part * part_width
        lane, four = tl.arange(0, ROWS * COLUMNS // 16), tl.arange(0, 4)[:, None]
        rows = (lane // (COLUMNS // 4))[None, :] * 4 + four
        columns = (lane % (COLUMNS // 4))[None, :] * 4 + four
        found = _summed(
            query + batch * query_batch + head * query_head,
            key + batch * key_batch + key_head_here * key_head,
            vector + head * vector_head,
            exponentials_of_query + query_tile * padded * ROWS,
            exponentials_of_key + key_tile * padded * COLUMNS,
            furthest(reach_of_query, query_tile, spans), furthest(reach_of_key, key_tile, spans),
            wide_of_query + query_tile * padded, wide_of_key + key_tile * padded,
            rows, columns, row, column, queries, keys, query_row, key_row,
            low, tl.minimum(low + part_width, padded), scale,
            ROWS, COLUMNS, GROUP, UNROLL, CENTRED, APPROXIMATE,
        )  # fmt: skip
        place = scores + part * scores_part + both * scores_head + column
        place += (row - first_tile * ROWS).to(tl.int64) * scores_row
        bias += batch * bias_batch + head * bias_head + row.to(tl.int64) * bias_row + column * bias_column
        _stored(
            found, place, bias, queries - row, end - column, scores_row, bias_row, bias_column, scale,
            part == 0, ROWS, COLUMNS, BIAS,
        )  # fmt: skip
