# mypy: disable-error-code="no-untyped-def"
"""Gradients of query, key and vector as matrix products, in bfloat16: the Fourier series of tanh.

    tanh(x) = sum_n c_n sin(w_n x)     tanh'(x) = sum_n d_n cos(w_n x)     for |x| <= REACH
    sin(w (q + k)) = sin wq cos wk + cos wq sin wk

The series separates q from k, so the sums over keys (for dq) or over queries (for dk) are matrix products of
the gradient of the scores, g, with the basis functions of the other side: its sines and cosines. With A_n and
B_n the products with sin and with cos,

    dq = v sum_n d_n (cos(w_n q) B_n - sin(w_n q) A_n)
    dv = sum over rows of sum_n c_n (cos(w_n q) A_n + sin(w_n q) B_n)

Where a channel of a row is saturated for all keys, |q + k| >= SATURATED with one sign, the error of the
series would be larger than the gradient. There the kernel uses the first term of the exponential series,
which separates too:

    tanh'(x) = 4 e^-2x (1 - ...)     tanh(x) = 1 - 2 e^-2x (1 - ...)     for x >= SATURATED, odd for x < 0

Range: tiles with |q + k| <= REACH; tiles beyond it are computed by the exact kernels of additive_backward.

Error per channel c, before the result is rounded to bfloat16 (relative 2^-9):

    not saturated   |error of dq_c| <= 5e-4 |v_c| sum_j |g_j|, likewise dk_c over the queries (series 2.3e-4,
                    the rest is float16); |error of dv_c| <= 7e-4 sum_ij |g_ij| (series 1.0e-4)
    saturated       relative to 4 |v_c| sum_j |g_j| e^-2|q+k|: at most 2^-8 (first term 2^-9, float16 2^-10)

Eager PyTorch in bfloat16 rounds tanh, and so its derivative, by 2^-9 = 2e-3; from SATURATED on it rounds tanh
to 1 and gives zero gradients for query and key. g is scaled by a power of 2 for each query row (dq, dv) and
for each key (dk), so rows with small output gradients keep their precision next to rows with large ones.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7); saturated channels and
the scales of rows and keys under the interpreter alone.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

from regard.kernels.kernel_mask import end_of
from regard.kernels.matrix_product import product
from regard.kernels.tanh import TWICE_LOG2E

__all__ = [
    "BASIS",
    "BASIS_ROWS",
    "REACH",
    "SATURATED",
    "additive_basis_kernel",
    "additive_series_kernel",
    "scaling",
    "series",
]

REACH = tl.constexpr(10.0)
"""The series holds for |q + k| up to this."""

SATURATED = tl.constexpr(3.4657)
"""atanh(1 - 2^-9): from here on, bfloat16 rounds tanh to 1."""

BASIS = tl.constexpr(32)
"""Basis functions of a channel: 15 sines and a decreasing exponential, 15 cosines and an increasing one."""

BASIS_ROWS = tl.constexpr(16)
"""Rows of a program of additive_basis_kernel; the range of each channel is stored once for this many rows."""

FIRST = math.pi / 14.6
"""The lowest frequency; the others are its odd multiples."""

SINES = (
    1.24932719, 0.359549779, 0.164409051, 0.0815131114, 0.0411802715, 0.0209106126, 0.0106468021,
    0.00540587336, 0.00275267508, 0.00141960697, 0.000709355216, 0.000381053997, 0.000188791784,
    0.00017958751, 4.36422403e-05, 0.0,
)  # fmt: skip
"""c_n: a minimax fit (iteratively reweighted least squares); the last, 0, is the place of the exponential."""

COSINES = (
    0.268814698, 0.232124595, 0.176875886, 0.122758259, 0.0797723304, 0.0494817589, 0.0297450635,
    0.0174675162, 0.0100430817, 0.00572534182, 0.00322881466, 0.00176869968, 0.0010029975,
    0.000553199797, 0.000404571272, 0.0,
)  # fmt: skip
"""d_n: fitted in the same way."""

QUARTER = tl.constexpr(math.pi / 2)
"""sin(x + QUARTER) = cos x."""

LARGEST = tl.constexpr(14)
"""g is scaled to at most 2^LARGEST, well below the largest float16."""

EXPONENTIAL = tl.constexpr(64.0)
"""Scale of the exponentials. In a saturated channel of a tile within REACH, q + k >= SATURATED and
|q| + |k| <= REACH, so e^-2k <= e^(REACH - SATURATED) = 690, and 64 times that is less than the largest
float16."""

HALF = tl.constexpr(65504.0)
"""The largest float16."""


@functools.cache
def series(device: torch.device) -> torch.Tensor:
    """Return w_n, d_n and c_n as float32, (3, BASIS): 16 values each, repeated for sines and for cosines.

    Cached: CUDA graph capture cannot copy from the host; the warm-up run before the capture does."""
    frequency = [FIRST * (2 * n + 1) for n in range(len(SINES))]
    return torch.tensor([frequency, COSINES, SINES], dtype=torch.float32).repeat(1, 2).to(device)


@triton.jit
def _exponent(x):
    """The biased exponent e of a float32 that is not negative: x < 2^(e - 126)."""
    return x.to(tl.int32, bitcast=True) >> 23


@triton.jit
def scaling(bounds, peak, scale):
    """Powers of 2 that scale g to at most 2^LARGEST, given |g| <= 2 bounds peak scale, and their inverses.

    Integer arithmetic on exponents: two kernels that call this get the same bits."""
    power = LARGEST + 251 - _exponent(bounds) - _exponent(peak * tl.abs(scale))
    power = tl.maximum(tl.minimum(power, 126), -126)
    up, down = (power + 127) << 23, (127 - power) << 23
    return up.to(tl.float32, bitcast=True), down.to(tl.float32, bitcast=True)


@triton.jit
def _sines(x, frequency, shift, APPROXIMATE: tl.constexpr):
    """sin(x * frequency + shift) for every element of x and every frequency (a new last dimension). On CUDA
    with the special function unit, whose absolute error is 2^-14 here."""
    angle = x[:, :, None] * frequency[None, None, :] + shift
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.sin(angle)


@triton.jit
def _within(x):
    """x, or 0 where |x| > REACH or x is NaN: the exact kernels compute these tiles."""
    return tl.where(tl.abs(x) <= REACH, x, 0.0)


@triton.jit
def additive_basis_kernel(
    source, basis, ranges, constants, lengths, length_step, heads, count, first_channel, width, padded,
    batch_step, head_step, row_step,
    WIDTH: tl.constexpr, LENGTHS: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the basis functions of `count` rows and `padded` channels from first_channel on.

    basis: (B H, count, padded, BASIS), float16. ranges: the maxima of x and of -x over each BASIS_ROWS rows,
    (B H, blocks, 2, padded), float32; rows beyond the length of their sequence and elements beyond REACH are
    ignored.
    """
    both = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BASIS_ROWS + tl.arange(0, BASIS_ROWS)
    local = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    channels = first_channel + local
    inside = (rows < count)[:, None] & (channels < width)[None, :]
    at = source + both // heads * batch_step + both % heads * head_step
    at += rows.to(tl.int64)[:, None] * row_step + channels[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    end = end_of(lengths, length_step, both // heads, count, LENGTHS)
    counts = (tl.abs(x) <= REACH) & (rows < end)[:, None]
    range_at = ranges + (both * tl.num_programs(0) + tl.program_id(0)) * 2 * padded + local
    tl.store(range_at, tl.max(tl.where(counts, x, float("-inf")), 0), mask=local < padded)
    tl.store(range_at + padded, tl.max(tl.where(counts, -x, float("-inf")), 0), mask=local < padded)
    x = _within(x)
    term = tl.arange(0, BASIS)
    shift = tl.where(term < BASIS // 2, 0.0, QUARTER)[None, None, :]
    found = _sines(x, tl.load(constants + term), shift, APPROXIMATE)
    decreasing = tl.where(x >= -SATURATED, tl.exp2(-x * TWICE_LOG2E) * EXPONENTIAL, HALF)[:, :, None]
    increasing = tl.where(x <= SATURATED, tl.exp2(x * TWICE_LOG2E) * EXPONENTIAL, HALF)[:, :, None]
    found = tl.where((term == BASIS // 2 - 1)[None, None, :], decreasing, found)
    found = tl.where((term == BASIS - 1)[None, None, :], increasing, found)
    place = basis + ((both * count + rows)[:, None] * padded + local[None, :])[:, :, None] * BASIS
    there = (rows < count)[:, None] & (local < padded)[None, :]
    tl.store(place + term[None, None, :], found.to(tl.float16), mask=there[:, :, None])


@triton.jit
def _maximum(ranges, low, high, blocks, padded, CHANNELS: tl.constexpr):
    """The maximum of each channel over the blocks that hold the rows from low to high."""
    found = tl.full([CHANNELS], float("-inf"), tl.float32)
    for first in range(low // BASIS_ROWS, tl.cdiv(high, BASIS_ROWS), 16):
        block = first + tl.arange(0, 16)
        at = ranges + block[:, None] * (2 * padded) + tl.arange(0, CHANNELS)[None, :]
        found = tl.maximum(found, tl.max(tl.load(at, mask=(block < blocks)[:, None], other=float("-inf")), 0))
    return found


@triton.jit
def _last(sums):
    """The last element of the third dimension: the exponential term."""
    term = tl.arange(0, sums.shape[2])
    return tl.sum(tl.where((term == sums.shape[2] - 1)[None, None, :], sums, 0.0), 2)


@triton.jit
def _saturation(x, ranges, with_sine, with_cosine, low, high, blocks, padded, CHANNELS: tl.constexpr):
    """Whether q + k >= SATURATED, and whether q + k <= -SATURATED, for all keys of a row; and the sum of
    g e^-2|q + k| where either holds."""
    above = x - _maximum(ranges + padded, low, high, blocks, padded, CHANNELS)[None, :] >= SATURATED
    below = x + _maximum(ranges, low, high, blocks, padded, CHANNELS)[None, :] <= -SATURATED
    own = tl.exp2(tl.where(above, -x, x) * TWICE_LOG2E) * (1.0 / EXPONENTIAL)
    return above, below, own * tl.where(above, _last(with_sine), _last(with_cosine))


@triton.jit
def _row_sums(tanhs, tail, above, below, rest):
    """The sum of g tanh over the keys of a row within REACH. In saturated channels it is computed from `tail`
    and from `rest`, the sum of g over keys beyond REACH, since g sums to 0 over a whole row."""
    ends = rest[:, None] + 2.0 * tail
    return tl.where(above, -ends, tl.where(below, ends, tanhs))


@triton.jit
def additive_series_kernel(
    gradients, own, basis, ranges, constants, vector, bounds, peaks, beyond, found, exact, dvector,
    heads, groups, own_count, other_count, first_channel, width, padded, scale,
    gradients_head, gradients_row, own_batch, own_head, own_row, vector_head, bounds_head, beyond_head,
    found_head, exact_head, exact_part, exact_parts, dvector_row, offset, before, after,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, QUERY: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of rows of the own side (query or key), in CHANNELS channels.

    gradients: scaled g, (B H, own, other); 0 where masked or computed by the exact kernels. own: query or
    key. basis, ranges: of the other side. bounds, peaks: arguments of scaling(), for each own row and for
    each sequence and head. beyond: the sum of g over the tiles of each row beyond REACH, (B H, own). found:
    the result, (B H, own, D). exact: partial results of the exact kernels in float32, which are added.
    offset, before, after: row i attends at most to others i + offset - before to i + offset + after. QUERY:
    whether the own side is the query; then dvector is computed too, one partial sum per program.
    """
    WIDE: tl.constexpr = CHANNELS * BASIS
    own_both = tl.program_id(2).to(tl.int64)
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    channels = first_channel + tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    step = tl.full([], 0, tl.int64) + padded * BASIS
    here, there = local < own_count, channels < width
    inside = here[:, None] & there[None, :]
    key_heads = heads // groups
    if QUERY:
        batch, first_head, walks, own_heads = own_both // heads, own_both % heads, 1, heads
    else:
        batch, first_head, walks = own_both // key_heads, own_both % key_heads * groups, groups
        own_heads = key_heads
    low, high, begin = 0, other_count, tl.program_id(0) * ROWS + offset
    if BEFORE:
        low = tl.maximum(begin - before, 0) // COLUMNS * COLUMNS
    if AFTER:
        high = tl.minimum(high, begin + ROWS + after)
    own_at = own + batch * own_batch + own_both % own_heads * own_head
    own_at += local.to(tl.int64)[:, None] * own_row + channels[None, :]
    blocks = tl.cdiv(other_count, BASIS_ROWS)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for walk in range(walks):
        head = first_head + walk
        both = batch * heads + head
        other = batch * key_heads + head // groups if QUERY else both
        gradient_at = gradients + both * gradients_head + local.to(tl.int64)[:, None] * gradients_row
        sums = tl.zeros([ROWS, WIDE], tl.float32)
        for start in range(low, high, COLUMNS):
            others = start + tl.arange(0, COLUMNS)
            known = here[:, None] & (others < other_count)[None, :]
            g = tl.load(gradient_at + others[None, :], mask=known, other=0.0)
            basis_at = basis + (other * other_count + others)[:, None] * step + columns[None, :]
            some = tl.load(basis_at, mask=(others < other_count)[:, None], other=0.0)
            sums = product(g, some, sums, PRECISION)
        bound = tl.load(bounds + both * bounds_head + local, mask=here, other=0.0)
        _, undone = scaling(bound, tl.load(peaks + both), scale)
        v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
        by_term = tl.reshape(sums, [ROWS, CHANNELS, 2, BASIS // 2])
        with_sine, with_cosine = tl.split(tl.permute(by_term, (0, 1, 3, 2)))
        x = _within(tl.load(own_at, mask=inside, other=0.0).to(tl.float32))
        range_at = ranges + other * blocks * 2 * padded + tl.program_id(1) * CHANNELS
        saturation = _saturation(x, range_at, with_sine, with_cosine, low, high, blocks, padded, CHANNELS)
        above, below, tail = saturation
        term = tl.arange(0, BASIS // 2)
        frequency = tl.load(constants + term)
        sine, cosine = _sines(x, frequency, 0.0, APPROXIMATE), _sines(x, frequency, QUARTER, APPROXIMATE)
        slope = tl.load(constants + BASIS + term)[None, None, :]
        slopes = tl.sum((cosine * with_cosine - sine * with_sine) * slope, 2)
        total += tl.where(above | below, 4.0 * tail, slopes) * undone[:, None] * v[None, :]
        if QUERY:
            size = tl.load(constants + 2 * BASIS + term)[None, None, :]
            tanhs = tl.sum((cosine * with_sine + sine * with_cosine) * size, 2) * undone[:, None]
            rest = tl.load(beyond + both * beyond_head + local, mask=here, other=0.0)
            of_vector = tl.sum(_row_sums(tanhs, tail * undone[:, None], above, below, rest), 0)
            place = (own_both * tl.num_programs(0) + tl.program_id(0)) * dvector_row + channels
            tl.store(dvector + place, of_vector, mask=there)
    at = local.to(tl.int64)[:, None] * width + channels[None, :]
    for part in range(exact_parts):
        place = exact + part * exact_part + own_both * exact_head + at
        total += tl.load(place, mask=inside, other=0.0)
    tl.store(found + own_both * found_head + at, total, mask=inside)
