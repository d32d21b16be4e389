# mypy: disable-error-code="no-untyped-def"
"""The forward pass of additive attention in one launch, for short sequences.

A program computes up to 16 query rows of one sequence and head: their scores, the softmax and the output.
Each thread computes the scores of all these rows with KEYS keys, in some of the channels: the channels are
divided between `splits` threads. `splits` is even, and depends on the length of the sequence, so that all
threads have work, and keys beyond the length take no time. short_launch() chooses rows and threads.

e^2k is computed in registers, by the thread that uses it. e^2q is used with all keys, so it is computed once
per program and stored. The factor FLOOR of the denominators (see tanh.py) is part of e^2q here. So the
formula holds for every k, even if e^2k underflows or overflows, as long as |q| <= REACH. A channel in which a
row of the program has a larger |q|, or NaN, is called a wide channel. Its term in the scores is finite, but
wrong, and is replaced at the end by a term that is computed from q + k.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from regard.kernels import launch
from regard.kernels.additive.tile_sizes import Shape
from regard.kernels.dropout import dropout_factors
from regard.kernels.launch import power_of_two, up
from regard.kernels.mask import end_of, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import (
    CENTRE,
    FLOOR,
    LOG2E,
    TWICE_LOG2E,
    denominator,
    exact_share,
    exponential,
    reciprocal,
)

__all__ = ["ShortLaunch", "additive_short_kernel", "short_launch"]

SHORT_KEYS = 64
"""Maximum number of keys for which the forward pass is one launch, if there is padding; otherwise 63.

64 keys are whole tiles of the kernels for longer sequences. For 80,64,64,512 on an H200, these are faster
without padding (57 instead of 58 microseconds) and slower with padding (68 instead of 56)."""

SHORT_ROWS = (13, 12, 10, 9, 8, 6, 5, 4, 2)
"""Numbers of query rows of a program that are compared. The last group of four rows has 1, 2 or 4. More than
13 rows would need more than 128 registers per thread."""

FIXED_ROWS = 3
"""Time of a program that does not depend on its number of rows, as a number of rows."""

MOST_SPLITS = 64
"""Maximum number of threads that the channels of a key are divided between."""

ROOM = 1 << 24
"""Maximum number of float32 numbers that all programs together use as temporary memory, unless query and key
have half as many elements."""


@dataclass(frozen=True)
class ShortLaunch:
    """Launch parameters of additive_short_kernel.

    rows: number of query rows of a program, 2 to 16.
    threads: number of threads of a program.
    registers: maximum number of registers per thread.
    keys: number of keys of each thread, 1 or 2. keys * threads is at least 2 S.
    depth: number of channels of the value that it processes at a time.
    """

    rows: int
    threads: int = 256
    registers: int = 128
    keys: int = 2
    depth: int = 128

    @property
    def count(self) -> int:
        """Number of groups of four rows, the last one with 1, 2 or 4 rows."""
        return -(-self.rows // 4)

    @property
    def quads(self) -> int:
        """`count`, rounded up to a power of two."""
        return power_of_two(self.count)

    @property
    def width(self) -> int:
        """Number of channels of the query that a program prepares at a time: 8192 elements."""
        return 2048 // self.quads

    def tiles(self, shape: Shape) -> int:
        """Number of programs for each sequence and head."""
        return -(-shape.queries // self.rows)

    def room(self, shape: Shape) -> tuple[int, int, int]:
        """Number of float32 numbers that a program stores: e^2q, v, and partial sums of the scores."""
        groups = -(-shape.width // 4)
        groups = up(groups + min(groups, MOST_SPLITS), 8)
        return groups * 16 * self.quads, groups * 4, 2 * self.quads * self.keys * self.threads


def short_launch(shape: Shape, device: torch.device, padded: bool) -> ShortLaunch | None:
    """Return the launch parameters with which the forward pass is one launch; None if it is several.

    The number of rows is chosen so that the multiprocessor with the most rows has few of them.

    padded: whether the mask has lengths.
    """
    most = SHORT_KEYS if padded else SHORT_KEYS - 1
    if not 1 < shape.keys <= most or shape.queries == 1:  # one query: see decode.py
        return None
    sequences, many = shape.batch * shape.heads, max(1, launch.processors(device))

    def programs(rows: int) -> int:
        return sequences * -(-shape.queries // rows)

    rows = min(SHORT_ROWS, key=lambda rows: -(-programs(rows) // many) * (rows + FIXED_ROWS))
    threads = power_of_two(-(-shape.keys // ShortLaunch.keys) * -(-shape.width // 4))
    threads = max(128, min(threads, 512 if 2 * programs(rows) <= many else 256))
    # With 80 registers per thread, a multiprocessor runs three programs of 256 threads at once, with 128 two.
    registers = 80 if rows <= 8 and programs(rows) > 4 * many else 128
    short = ShortLaunch(rows, threads, registers)
    elements = (sequences * shape.queries + shape.batch * shape.key_heads * shape.keys) * shape.width
    return short if programs(rows) * sum(short.room(shape)) <= max(ROOM, 2 * elements) else None


REACH, REACH_HALF = tl.constexpr(33.0), tl.constexpr(38.0)
"""The largest |q| for which e^2q is used, in float32 and in half precision. FLOOR e^2q is at least 2^-126 for
33, so float32 loses no precision. For 38 it keeps 10 bits, an error of at most 2^-11 in q, which is rounded
to multiples of 2^-5 or more there in half precision.
e^2k is 0 for k < -43.7 and infinite for k > 44.3. There, r = 1 / (1 + e^2(q + k)) differs from 1 or 0 by less
than FLOOR, or 2e-5 in half precision."""

LARGEST = tl.constexpr(2.0**126)
"""FLOOR e^2q is limited to this number and to the smallest float32 number above 0, so that its product with 0
or with infinity is not NaN."""


@triton.jit
def exponential_of_key(x, PRECISE: tl.constexpr):
    """Return e^2x; 0 or inf if it underflows or overflows. PRECISE: see exponential() in tanh.py."""
    if PRECISE:  # exponential() would return NaN for an infinite x
        x = tl.minimum(x, 60.0, propagate_nan=tl.PropagateNan.ALL)
        x = tl.maximum(x, -60.0, propagate_nan=tl.PropagateNan.ALL)
        return exponential(x, True) * 32768.0
    return tl.exp2(x * TWICE_LOG2E)


@triton.jit
def _exponentials(a, b, c, d, PRECISE: tl.constexpr):
    """Return exponential_of_key() of four tensors."""
    return (
        exponential_of_key(a, PRECISE),
        exponential_of_key(b, PRECISE),
        exponential_of_key(c, PRECISE),
        exponential_of_key(d, PRECISE),
    )


@triton.jit
def exponential_of_query(q, PRECISE: tl.constexpr):
    """Return FLOOR e^2q, limited (see LARGEST); NaN if q is NaN."""
    # Adding the smallest number takes one instruction less than a limit.
    smallest = tl.full([], 1, tl.int32).to(tl.float32, bitcast=True)
    x = exponential_of_key(q, PRECISE) * FLOOR + smallest
    return tl.minimum(x, LARGEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sizes_of(x):
    """Return the bits of |x| as int32. They have the same order as |x|, and those of NaN are the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def has_wide(size, PRECISE: tl.constexpr):
    """Whether |q| is above REACH (REACH_HALF in half precision), or NaN. size: from sizes_of()."""
    return size > sizes_of(tl.full([], REACH if PRECISE else REACH_HALF, tl.float32))


@triton.jit
def two_floats(at):
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
def _of_keys(first, second, inside, KEYS: tl.constexpr):
    """Load one number for each key of a thread, (KEYS, threads); 0 where `inside` is False.

    first, second: pointers for the first and the second key, (threads,). With tl.join(), each thread gets the
        numbers that it loads. For a load of a tensor (2, threads), triton 3.6 exchanges them between threads.
    """
    x = tl.load(first, mask=inside, other=0)
    if KEYS == 1:
        return x[None, :]
    else:  # noqa: RET505  (a return after `if` would be compiled in both cases)
        return tl.permute(tl.join(x, tl.load(second, mask=inside, other=0)), (1, 0))


@triton.jit
def packed_keys(key, key2, channel, width, KEYS: tl.constexpr):
    """Load four channels of each key, from `channel` on, as bits of an int64; 0 beyond the last channel."""
    first = (key + channel).to(tl.pointer_type(tl.int64), bitcast=True)
    second = (key2 + channel).to(tl.pointer_type(tl.int64), bitcast=True)
    return _of_keys(first, second, channel < width, KEYS)


@triton.jit
def four_packed(four, dtype: tl.constexpr):
    """Return e^2k of four channels from the result of packed_keys()."""
    a, b = _halves(four.to(tl.int32), dtype)
    c, d = _halves((four >> 32).to(tl.int32), dtype)
    return _exponentials(a, b, c, d, False)


@triton.jit
def four_keys(key, key2, channel, width, KEYS: tl.constexpr, PRECISE: tl.constexpr):
    """Return e^2k of four channels, from `channel` on, for the keys of each thread, (KEYS, threads).

    k = 0 beyond the last channel.
    key, key2: pointers to channel 0 of the first and the second key. channel: the first of the four channels.
    """
    key, key2 = key + channel, key2 + channel
    a = _of_keys(key, key2, channel < width, KEYS).to(tl.float32)
    b = _of_keys(key + 1, key2 + 1, channel + 1 < width, KEYS).to(tl.float32)
    c = _of_keys(key + 2, key2 + 2, channel + 2 < width, KEYS).to(tl.float32)
    d = _of_keys(key + 3, key2 + 3, channel + 3 < width, KEYS).to(tl.float32)
    return _exponentials(a, b, c, d, PRECISE)


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
