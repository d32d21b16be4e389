# mypy: disable-error-code="no-untyped-def"
"""The forward pass of additive attention in one launch, for short sequences.

A program computes up to 16 query rows of one sequence and head: their scores, the softmax and the output.
Each thread computes the scores of all these rows with KEYS keys, in some of the channels: the channels are
divided between `splits` threads. `splits` is even, and depends on the length of the sequence, so that all
threads have work, and keys beyond the length take no time.

e^2k is computed in registers, by the thread that uses it. e^2q is used with all keys, so it is computed once
per program and stored. The factor FLOOR of the denominators (see tanh.py) is part of e^2q here. So the
formula holds for every k, even if e^2k underflows or overflows, as long as |q| <= REACH (see
short_exponentials.py). A channel in which a row of the program has a larger |q|, or NaN, is called a wide
channel. Its term in the scores is finite, but wrong, and is replaced at the end by a term that is computed
from q + k.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.additive.short_exponentials import (
    exponential_of_key,
    exponential_of_query,
    four_keys,
    four_packed,
    has_wide,
    packed_keys,
    sizes_of,
    two_floats,
)
from regard.kernels.dropout import dropout_factors
from regard.kernels.mask import end_of, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import CENTRE, FLOOR, LOG2E, denominator, exact_share, reciprocal

__all__ = ["additive_short_kernel"]


@triton.jit
def _added(
    total, exponentials, a, b, c, d, v, w, x, y,
    FIRST: tl.constexpr, QUADS: tl.constexpr, CENTRED: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Add SCALE times the sum of v r over four channels to `total`, (rows, KEYS, threads).

    The four channels share one reciprocal; see shared_sum() in tanh.py.

    exponentials: pointers to e^2q of row 0 and the first of the four channels, see _prepare(), (threads,).
    a, b, c, d: e^2k of the four channels, (KEYS, threads). v, w, x, y: v of these channels, (threads,).
    FIRST: the first row, a multiple of 4.
    """
    at = exponentials[None, :] + (FIRST * 8 + tl.arange(0, total.shape[0]))[:, None]
    one = denominator(tl.load(at)[:, None, :], a[None, :, :], APPROXIMATE)
    two = denominator(tl.load(at + 32 * QUADS)[:, None, :], b[None, :, :], APPROXIMATE)
    above, below = v[None, None, :] * two + w[None, None, :] * one, one * two
    one = denominator(tl.load(at + 64 * QUADS)[:, None, :], c[None, :, :], APPROXIMATE)
    two = denominator(tl.load(at + 96 * QUADS)[:, None, :], d[None, :, :], APPROXIMATE)
    below2 = one * two
    above = above * below2 + (x[None, None, :] * two + y[None, None, :] * one) * below
    shares = above * reciprocal(below * below2, APPROXIMATE)
    return total + (shares - ((v + w) + (x + y))[None, None, :] * CENTRE if CENTRED else shares)


@triton.jit
def _loaded(
    query, vector, row, first, queries, width, query_row,
    ROWS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load WIDTH channels from `first` on: q, (TILE, WIDTH), and v, (WIDTH,), in float32.

    They are 0 beyond the ROWS rows of the program, the last query and the last channel.
    """
    local, channels = tl.arange(0, TILE), first + tl.arange(0, WIDTH)
    inside = ((local < ROWS) & (row + local < queries))[:, None] & (channels < width)[None, :]
    at = query + (row + local).to(tl.int64)[:, None] * query_row + channels[None, :]
    q = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(vector + channels, mask=channels < width, other=0.0).to(tl.float32)
    return q, v


@triton.jit
def _stored(
    exponentials, vectors, q, v, first, channels, QUADS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Write e^2q and v of WIDTH channels from `first` on, in the order that _prepare() describes."""
    place = first + tl.arange(0, WIDTH)
    tl.store(vectors + place, v, mask=place < channels)
    x = tl.permute(tl.reshape(exponential_of_query(q, PRECISE), [QUADS, 4, WIDTH // 4, 4]), [3, 0, 2, 1])
    group = first // 4 + tl.arange(0, WIDTH // 4)
    at = (group // 8 * (128 * QUADS) + group % 8 * 4)[None, None, :, None]
    at += (tl.arange(0, 4)[:, None] * QUADS + tl.arange(0, QUADS)[None, :])[:, :, None, None] * 32
    at += tl.arange(0, 4)[None, None, None, :]
    tl.store(exponentials + at, x, mask=(group * 4 < channels)[None, None, :, None])


@triton.jit
def _prepare(
    query, vector, exponentials, vectors, row, queries, width, query_row, channels,
    ROWS: tl.constexpr, QUADS: tl.constexpr, WIDTH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write FLOOR e^2q of the rows of the program, and v; return the sum of v and the largest of sizes_of(q).

    channels: number of channels with padding.
    exponentials: writes (channels / 32, 4, QUADS, 8, 4): channel 32 i + 4 j + m of row 4 n + l has the
        indices i, m, n, j, l. So adjacent threads, which have adjacent groups of four channels, load adjacent
        numbers, and each thread loads four rows with one instruction.
    vectors: writes v, (channels,).
    """
    largest, total = tl.zeros([4 * QUADS, WIDTH], tl.int32), tl.zeros([WIDTH], tl.float32)
    for first in range(0, channels, WIDTH):
        q, v = _loaded(query, vector, row, first, queries, width, query_row, ROWS, 4 * QUADS, WIDTH)
        largest = tl.maximum(largest, sizes_of(q))
        total += v
        _stored(exponentials, vectors, q, v, first, channels, QUADS, WIDTH, PRECISE)
    return tl.sum(total, 0), tl.max(tl.max(largest, 1), 0)


@triton.jit
def _partial_sums(
    key, exponentials, vectors, partial, end, width, key_row, splits, steps,
    COUNT: tl.constexpr, REST: tl.constexpr, QUADS: tl.constexpr, KEYS: tl.constexpr, THREADS: tl.constexpr,
    PACKED: tl.constexpr, CENTRED: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Write SCALE times the sum of v r to `partial`, (rows, splits / 2, keys).

    Each sum is that of the channels of two adjacent threads. The caller adds the splits / 2 sums. The number
    of keys is rounded up to a multiple of KEYS.

    COUNT: number of groups of up to four rows, 1 to 4. REST: number of rows of the last group, 1, 2 or 4.
    """
    lane, last = tl.arange(0, THREADS), tl.maximum(end - 1, 0)
    split, column = lane % splits, lane // splits * KEYS
    key2 = key + tl.minimum(column + 1, last).to(tl.int64) * key_row
    key += tl.minimum(column, last).to(tl.int64) * key_row
    sum1 = tl.zeros([4 if COUNT > 1 else REST, KEYS, THREADS], tl.float32)
    sum2 = tl.zeros([4 if COUNT > 2 else REST, KEYS, THREADS], tl.float32)
    sum3 = tl.zeros([4 if COUNT > 3 else REST, KEYS, THREADS], tl.float32)
    sum4 = tl.zeros([REST, KEYS, THREADS], tl.float32)
    if PACKED:  # the keys of the next step are loaded one step ahead
        four = packed_keys(key, key2, split * 4, width, KEYS)
    for step in range(steps):
        group = step * splits + split
        if PACKED:
            a, b, c, d = four_packed(four, key.dtype.element_ty)
            four = packed_keys(key, key2, (group + splits) * 4, width, KEYS)
        else:
            a, b, c, d = four_keys(key, key2, group * 4, width, KEYS, CENTRED)
        v, w = two_floats(vectors + group * 4)
        x, y = two_floats(vectors + group * 4 + 2)
        at = exponentials + (group // 8 * (128 * QUADS) + group % 8 * 4)
        sum1 = _added(sum1, at, a, b, c, d, v, w, x, y, 0, QUADS, CENTRED, APPROXIMATE)
        if COUNT > 1:
            sum2 = _added(sum2, at, a, b, c, d, v, w, x, y, 4, QUADS, CENTRED, APPROXIMATE)
        if COUNT > 2:
            sum3 = _added(sum3, at, a, b, c, d, v, w, x, y, 8, QUADS, CENTRED, APPROXIMATE)
        if COUNT > 3:
            sum4 = _added(sum4, at, a, b, c, d, v, w, x, y, 12, QUADS, CENTRED, APPROXIMATE)
    _kept(partial, sum1, end, splits, 0, KEYS, THREADS)
    if COUNT > 1:
        _kept(partial, sum2, end, splits, 4, KEYS, THREADS)
    if COUNT > 2:
        _kept(partial, sum3, end, splits, 8, KEYS, THREADS)
    if COUNT > 3:
        _kept(partial, sum4, end, splits, 12, KEYS, THREADS)


@triton.jit
def _kept(partial, sums, end, splits, FIRST: tl.constexpr, KEYS: tl.constexpr, THREADS: tl.constexpr):
    """Add the partial sums of two adjacent threads, and store them, for some rows from row FIRST on."""
    COUNT: tl.constexpr = sums.shape[0]
    pairs = tl.sum(tl.reshape(sums, [COUNT, KEYS, THREADS // 2, 2]), 3)
    lane, ahead = tl.arange(0, THREADS // 2) * 2, tl.cdiv(end, KEYS)
    of_pair = lane % splits // 2 * (ahead * KEYS) + lane // splits * KEYS
    rows = (FIRST + tl.arange(0, COUNT)) * (THREADS // 2 * KEYS)
    at = rows[:, None, None] + tl.arange(0, KEYS)[None, :, None] + of_pair[None, None, :]
    tl.store(partial + at, pairs, mask=(lane // splits < ahead)[None, None, :])


@triton.jit
def _with_channel(
    scores, query, key, vector, channel, row, end, queries, query_row, key_row,
    ROWS: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, PRECISE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return `scores`, (TILE, COLUMNS), with the term of one channel computed from q + k instead of e^2q."""
    local, columns = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    there = (local < ROWS) & (row + local < queries)
    q = tl.load(query + (row + local).to(tl.int64) * query_row + channel, mask=there, other=0.0)
    k = tl.load(key + columns.to(tl.int64) * key_row + channel, mask=columns < end, other=0.0)
    q, k = q.to(tl.float32), k.to(tl.float32)
    e, f = exponential_of_query(q, PRECISE), exponential_of_key(k, PRECISE)
    wrong = reciprocal(denominator(e[:, None], f[None, :], APPROXIMATE), APPROXIMATE)
    share = exact_share(q[:, None] + k[None, :], APPROXIMATE)
    return scores + tl.load(vector + channel).to(tl.float32) * (2.0 * FLOOR * wrong - 2.0 * share)


@triton.jit
def _wide_channels(
    scores, query, key, vector, row, end, queries, width, query_row, key_row,
    ROWS: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return `scores`, (TILE, COLUMNS), with the terms of the wide channels computed from q + k.

    WIDTH: number of channels that are searched at a time.
    """
    for first in range(0, width, WIDTH):
        channels = first + tl.arange(0, WIDTH)
        q, _ = _loaded(query, vector, row, first, queries, width, query_row, ROWS, TILE, WIDTH)
        wide = has_wide(tl.max(sizes_of(q), 0), PRECISE)
        channel = tl.min(tl.where(wide, channels, width), 0)
        while channel < width:
            scores = _with_channel(
                scores, query, key, vector, channel, row, end, queries, query_row, key_row,
                ROWS, TILE, COLUMNS, PRECISE, APPROXIMATE,
            )  # fmt: skip
            channel = tl.min(tl.where(wide & (channels > channel), channels, width), 0)
    return scores


@triton.jit
def _scores(
    partial, total, rows, columns, last, end, splits,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, THREADS: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """Return v . tanh(q + k), (TILE, COLUMNS), from the partial sums; with wrong terms of wide channels."""
    shares = tl.zeros([TILE, COLUMNS], tl.float32)
    at = partial + tl.arange(0, TILE)[:, None] * (THREADS // 2 * KEYS) + columns[None, :]
    inside = (rows < last)[:, None] & (columns < end)[None, :]
    for pair in range(splits // 2):
        shares += tl.load(at + pair * (tl.cdiv(end, KEYS) * KEYS), mask=inside, other=0.0)
    # A NaN in the key makes a denominator 0 on a GPU, so the sum is infinite or NaN. Other sums are finite.
    shares = tl.where(tl.abs(shares) < float("inf"), shares, float("nan"))
    return shares * (-2.0 * FLOOR) if CENTRED else shares * (-2.0 * FLOOR) + total


@triton.jit
def _softmax(scores, seen, lse, norm, place, size, there):
    """Write lse and norm; return the weights without their denominator, and 1 / denominator of each row.

    seen: whether the query attends to the key. place, there: index of each row, and whether it exists.
    size: number of rows of all programs, B H T.
    """
    scores = tl.where(seen, scores, float("-inf"))
    best = tl.max(scores, 1)
    level = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp2((scores - level[:, None]) * LOG2E)
    total = tl.sum(weights, 1)
    something = tl.where(total == 0.0, 1.0, total)
    inverse = 1.0 / something
    tl.store(lse + place, tl.where(total == 0.0, float("-inf"), level + tl.log(something)), mask=there)
    tl.store(norm + place, level, mask=there)
    tl.store(norm + size + place, inverse, mask=there)
    return weights, inverse


@triton.jit
def _write_output(
    weights, inverse, value, output, place, there, columns, end, depth, value_row,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the output, weights @ value * inverse. value: pointer to the current head; see _softmax()."""
    weights = weights.to(value.dtype.element_ty)
    value += columns.to(tl.int64)[:, None] * value_row
    for first in range(0, depth, DEPTH):
        channels = first + tl.arange(0, DEPTH)
        inside = (columns < end)[:, None] & (channels < depth)[None, :]
        values = tl.load(value + channels[None, :], mask=inside, other=0.0)
        total = product(weights, values, tl.zeros([weights.shape[0], DEPTH], tl.float32), PRECISION)
        at = output + place[:, None] * depth + channels[None, :]
        tl.store(at, total * inverse[:, None], mask=there[:, None] & (channels < depth)[None, :])


@triton.jit
def additive_short_kernel(
    query, key, value, vector, bias, seed, dropout, exponentials, vectors, partial, output, lse, norm, held,
    lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, width, depth, scale, bias_batch, bias_head, bias_row, bias_column,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    vector_head, tiles, exponentials_step, vectors_step, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COUNT: tl.constexpr, REST: tl.constexpr, QUADS: tl.constexpr, TILE: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, KEYS: tl.constexpr,
    THREADS: tl.constexpr, MOST_SPLITS: tl.constexpr, HOLD: tl.constexpr, BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, PACKED: tl.constexpr, EIGHTS: tl.constexpr, CENTRED: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, SEARCHED: tl.constexpr,
):  # fmt: skip
    """Compute output, lse and norm of ROWS query rows: softmax(scale * (v . tanh(q + k) + bias)) value.

    exponentials, vectors, partial: temporary memory, see _prepare() and _partial_sums().
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T), as additive_read_kernel does.
    held: if HOLD is True, writes the scores for the backward pass, (B H, T, S).
    tiles: number of programs of each sequence and head. Launch grid: (B H * tiles,).
    exponentials_step, vectors_step: number of elements of `exponentials` and `vectors` for each program.
    COUNT, REST: groups of four rows, see _partial_sums(). SEARCHED: WIDTH of _wide_channels().
    QUADS: COUNT, rounded up to a power of two. TILE, COLUMNS: ROWS and S, rounded up for tl.dot().
    KEYS, THREADS: number of keys of a thread, and of threads of a program; KEYS * THREADS is at least 2 S.
    MOST_SPLITS: maximum of `splits`, the number of threads that the channels of a key are divided between.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
        depth, value_row = depth // 8 * 8, value_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
    program = tl.program_id(0).to(tl.int64)
    both, row = program // tiles, (program % tiles).to(tl.int32) * ROWS
    batch, head = both // heads, both % heads
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    splits = tl.minimum(THREADS // tl.maximum(tl.cdiv(end, KEYS), 1), MOST_SPLITS)
    splits = tl.minimum(splits, tl.cdiv(width, 4) + 1) // 2 * 2  # even, see _kept()
    steps = tl.cdiv(width, 4 * splits)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head // groups * key_head
    vector += head * vector_head
    exponentials, vectors = exponentials + program * exponentials_step, vectors + program * vectors_step
    partial += program * (2 * QUADS * KEYS * THREADS)
    total, largest = _prepare(
        query, vector, exponentials, vectors, row, queries, width, query_row, steps * splits * 4,
        ROWS, QUADS, WIDTH, CENTRED,
    )  # fmt: skip
    tl.debug_barrier()  # other threads read what a thread has stored
    _partial_sums(
        key, exponentials, vectors, partial, end, width, key_row, splits, steps,
        COUNT, REST, QUADS, KEYS, THREADS, PACKED, CENTRED, APPROXIMATE,
    )  # fmt: skip
    tl.debug_barrier()
    rows, columns, last = row + tl.arange(0, TILE), tl.arange(0, COLUMNS), tl.minimum(row + ROWS, queries)
    scores = _scores(partial, total, rows, columns, last, end, splits, TILE, COLUMNS, KEYS, THREADS, CENTRED)
    if has_wide(largest, CENTRED):
        scores = _wide_channels(
            scores, query, key, vector, row, end, queries, width, query_row, key_row, ROWS, TILE, COLUMNS,
            SEARCHED, CENTRED, APPROXIMATE,
        )  # fmt: skip
    seen = visible(
        rows, columns, last, end, start, left, right, document_of_query + batch * documents_query_step,
        document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
    )  # fmt: skip
    if BIAS:
        of_bias = rows.to(tl.int64)[:, None] * bias_row + columns.to(tl.int64)[None, :] * bias_column
        of_bias += batch * bias_batch + head * bias_head
        scores += tl.load(bias + of_bias, mask=seen, other=0.0).to(tl.float32)
    scores *= scale
    place = both * queries + rows
    if HOLD:
        tl.store(held + place[:, None] * keys + columns[None, :], scores, mask=seen)
    weights, inverse = _softmax(scores, seen, lse, norm, place, size, rows < last)
    if DROPOUT:
        weights *= dropout_factors(seed, dropout, both, rows, columns, queries, keys)
    value += batch * value_batch + head // groups * value_head
    _write_output(
        weights, inverse, value, output, place, rows < last, columns, end, depth, value_row, DEPTH, PRECISION
    )
