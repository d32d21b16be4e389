# mypy: disable-error-code="no-untyped-def"
"""The forward pass of additive attention in one launch, for short sequences.

A program computes up to 16 query rows of one sequence and head: their scores, the softmax and the output.
Each thread computes the scores of all these rows with KEYS keys, in some of the channels: the channels are
divided between `splits` threads. `splits` is even, and depends on the length of the sequence, so that all
threads have work, and keys beyond the length take no time.

e^2k is computed in registers, by the thread that uses it. e^2q is used with all keys, so it is computed once
per program and stored. The factor FLOOR of the denominators (see tanh.py) is part of e^2q here. So the
formula holds for every k, even if e^2k underflows or overflows, as long as |q| <= REACH. A channel in which a
row of the program has a larger |q|, or NaN, is called a wide channel. It is computed from q + k.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.kernel_dropout import dropout_factors
from regard.kernels.kernel_mask import end_of, visible
from regard.kernels.matrix_product import product
from regard.kernels.quick_launch import quick_launch
from regard.kernels.tanh import (
    CENTRE,
    FLOOR,
    LOG2E,
    TWICE_LOG2E,
    denominator,
    exact_share,
    exponential,
    packed,
    reciprocal,
)

__all__ = ["additive_short_kernel"]

REACH = tl.constexpr(33.0)
"""The largest |q| for which e^2q is used. FLOOR e^2q is at least 2^-126 there, so float32 loses no precision.
e^2k is 0 for k < -43.7 and infinite for k > 44.3. There, r = 1 / (1 + e^2(q + k)) differs from 1 or 0 by less
than FLOOR."""


@triton.jit
def _exponential(x, PRECISE: tl.constexpr):
    """Return e^2x; 0 or inf if it underflows or overflows. PRECISE: see exponential() in tanh.py."""
    if PRECISE:  # exponential() would return NaN for an infinite x
        x = tl.minimum(x, 60.0, propagate_nan=tl.PropagateNan.ALL)
        x = tl.maximum(x, -60.0, propagate_nan=tl.PropagateNan.ALL)
        return exponential(x, True) * 32768.0
    return tl.exp2(x * TWICE_LOG2E)


@triton.jit
def _two_floats(at):
    """Load two adjacent float32 numbers per thread with one instruction."""
    two = tl.load(at.to(tl.pointer_type(tl.int64), bitcast=True))
    low, high = two.to(tl.int32), (two >> 32).to(tl.int32)
    return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)


@triton.jit
def _halves(both, dtype: tl.constexpr):
    """Return the two numbers in half precision that an int32 contains, in float32: low bits first."""
    if dtype == tl.bfloat16:
        return (both << 16).to(tl.float32, bitcast=True), (both & -65536).to(tl.float32, bitcast=True)
    low, high = both.to(tl.int16), (both >> 16).to(tl.int16)
    return low.to(dtype, bitcast=True).to(tl.float32), high.to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def _four_keys(key, channel, width, PACKED: tl.constexpr, PRECISE: tl.constexpr):
    """Return e^2k of four channels, from `channel` on, for the keys of each thread, (KEYS, threads).

    k = 0 beyond the last channel.
    key: pointers to channel 0 of each key. channel: the first of the four channels, (1, threads).
    PACKED: the key is in half precision with aligned rows, so that one instruction loads four channels.
    """
    if PACKED:
        at = (key + channel).to(tl.pointer_type(tl.int64), bitcast=True)
        four = tl.load(at, mask=channel < width, other=0)
        a, b = _halves(four.to(tl.int32), key.dtype.element_ty)
        c, d = _halves((four >> 32).to(tl.int32), key.dtype.element_ty)
    else:
        a = tl.load(key + channel, mask=channel < width, other=0.0).to(tl.float32)
        b = tl.load(key + channel + 1, mask=channel + 1 < width, other=0.0).to(tl.float32)
        c = tl.load(key + channel + 2, mask=channel + 2 < width, other=0.0).to(tl.float32)
        d = tl.load(key + channel + 3, mask=channel + 3 < width, other=0.0).to(tl.float32)
    return (
        _exponential(a, PRECISE),
        _exponential(b, PRECISE),
        _exponential(c, PRECISE),
        _exponential(d, PRECISE),
    )


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
    """Load WIDTH channels from `first` on: q, |q| (inf for NaN), (TILE, WIDTH), and v, (WIDTH,), in float32.

    They are 0 beyond the ROWS rows of the program, the last query and the last channel.
    """
    local, channels = tl.arange(0, TILE), first + tl.arange(0, WIDTH)
    inside = ((local < ROWS) & (row + local < queries))[:, None] & (channels < width)[None, :]
    at = query + (row + local).to(tl.int64)[:, None] * query_row + channels[None, :]
    q = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(vector + channels, mask=channels < width, other=0.0).to(tl.float32)
    return q, tl.where(q == q, tl.abs(q), float("inf")), v


@triton.jit
def _stored(
    exponentials, vectors, q, v, first, channels, QUADS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Write e^2q and v of WIDTH channels from `first` on, in the order that _prepare() describes."""
    place = first + tl.arange(0, WIDTH)
    tl.store(vectors + place, v, mask=place < channels)
    x = tl.permute(tl.reshape(_exponential(q, PRECISE) * FLOOR, [QUADS, 4, WIDTH // 4, 4]), [3, 0, 2, 1])
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
    """Write FLOOR e^2q of the rows of the program, and v; return the sum of v, and the largest |q|.

    channels: number of channels with padding.
    exponentials: writes (channels / 32, 4, QUADS, 8, 4): channel 32 i + 4 j + m of row 4 n + l has the
        indices i, m, n, j, l. So adjacent threads, which have adjacent groups of four channels, load adjacent
        numbers, and each thread loads four rows with one instruction.
    vectors: writes v, (channels,). In a wide channel, it writes 0 instead of v, and stores e^2q of q = 0.
    """
    largest, total = tl.zeros([4 * QUADS, WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for first in range(0, channels, WIDTH):
        q, size, v = _loaded(query, vector, row, first, queries, width, query_row, ROWS, 4 * QUADS, WIDTH)
        largest = tl.maximum(largest, size)
        total += v
        _stored(exponentials, vectors, q, v, first, channels, QUADS, WIDTH, PRECISE)
    top = tl.max(tl.max(largest, 1), 0)
    if top > REACH:
        tl.debug_barrier()  # before the numbers of wide channels are overwritten
        for first in range(0, channels, WIDTH):
            q, size, v = _loaded(query, vector, row, first, queries, width, query_row, ROWS, 4 * QUADS, WIDTH)
            wide = tl.max(size, 0) > REACH
            total -= tl.where(wide, v, 0.0)
            q, v = tl.where(wide[None, :], 0.0, q), tl.where(wide, 0.0, v)
            _stored(exponentials, vectors, q, v, first, channels, QUADS, WIDTH, PRECISE)
    return tl.sum(total, 0), top


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
    lane = tl.arange(0, THREADS)
    split, columns = lane % splits, (lane // splits * KEYS)[None, :] + tl.arange(0, KEYS)[:, None]
    key += tl.minimum(columns, tl.maximum(end - 1, 0)).to(tl.int64) * key_row
    sum1 = tl.zeros([4 if COUNT > 1 else REST, KEYS, THREADS], tl.float32)
    sum2 = tl.zeros([4 if COUNT > 2 else REST, KEYS, THREADS], tl.float32)
    sum3 = tl.zeros([4 if COUNT > 3 else REST, KEYS, THREADS], tl.float32)
    sum4 = tl.zeros([REST, KEYS, THREADS], tl.float32)
    for step in range(steps):
        group = step * splits + split
        a, b, c, d = _four_keys(key, group[None, :] * 4, width, PACKED, CENTRED)
        v, w = _two_floats(vectors + group * 4)
        x, y = _two_floats(vectors + group * 4 + 2)
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
def _wide_channels(
    scores, query, key, vector, row, end, queries, width, query_row, key_row,
    ROWS: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return `scores`, (TILE, COLUMNS), plus v tanh(q + k) of the wide channels, computed from q + k."""
    local, columns = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    there = (local < ROWS) & (row + local < queries)
    for first in range(0, width, 64):
        _, size, _ = _loaded(query, vector, row, first, queries, width, query_row, ROWS, TILE, 64)
        bits = packed(tl.max(size, 0) > REACH)
        if bits != 0:
            for index in range(64):
                if ((bits >> index) & 1) != 0:
                    at = first + index
                    q = tl.load(query + (row + local).to(tl.int64) * query_row + at, mask=there, other=0.0)
                    k = tl.load(key + columns.to(tl.int64) * key_row + at, mask=columns < end, other=0.0)
                    share = exact_share(q.to(tl.float32)[:, None] + k.to(tl.float32)[None, :], APPROXIMATE)
                    scores += tl.load(vector + at).to(tl.float32) * (1.0 - 2.0 * share)
    return scores


@triton.jit
def _scores(
    partial, total, rows, columns, last, end, splits,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, THREADS: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """Return v . tanh(q + k) without the wide channels, (TILE, COLUMNS), from the partial sums."""
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


@quick_launch
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
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute output, lse and norm of ROWS query rows: softmax(scale * (v . tanh(q + k) + bias)) value.

    exponentials, vectors, partial: temporary memory, see _prepare() and _partial_sums().
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T), as additive_read_kernel does.
    held: if HOLD is True, writes the scores for the backward pass, (B H, T, S).
    tiles: number of programs of each sequence and head. Launch grid: (B H * tiles,).
    exponentials_step, vectors_step: number of elements of `exponentials` and `vectors` for each program.
    COUNT, REST: the rows are computed in COUNT groups of four; see _partial_sums().
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
    total, top = _prepare(
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
    if top > REACH:
        scores = _wide_channels(
            scores, query, key, vector, row, end, queries, width, query_row, key_row, ROWS, TILE, COLUMNS,
            APPROXIMATE,
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
