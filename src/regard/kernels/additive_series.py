# mypy: disable-error-code="no-untyped-def"
"""Gradients of query, key and vector for bfloat16 inputs, as matrix products, by the Fourier series of tanh.

    tanh(x) = sum_n c_n sin(w_n x)     tanh'(x) = sum_n d_n cos(w_n x)     for |x| <= REACH
    sin(w (q + k)) = sin wq cos wk + cos wq sin wk

The series separates q from k. So the sum over the keys, for dq, is a matrix product of g, the gradient of the
scores, with sines and cosines of the keys. For dk, the sum is over the queries, with sines and cosines of the
queries. The sines and cosines are called basis functions. As in additive_backward, "own side" means the
tensor whose gradient is computed: the query or the key. "Other side" means the tensor of the two whose rows
are summed over. The formulas for dq and dv:

    A_n = sum over keys of g sin(w_n k)     B_n = sum over keys of g cos(w_n k)
    dq = v sum_n d_n (cos(w_n q) B_n - sin(w_n q) A_n)
    dv = sum over rows of sum_n c_n (cos(w_n q) A_n + sin(w_n q) B_n)

A channel of a row is called saturated if q + k >= SATURATED for all keys, or q + k <= -SATURATED for all
keys. There the error of the series would be larger than the gradient. So the kernel uses the first term of
the exponential series, which separates q from k too:

    tanh'(x) = 4 e^-2x (1 - ...)     tanh(x) = 1 - 2 e^-2x (1 - ...)     for x >= SATURATED

For x <= -SATURATED, tanh'(x) = tanh'(-x) and tanh(x) = -tanh(-x).

The series is used in tiles where largest |q| + largest |k| <= REACH. The kernels of additive_backward and
additive_gradients compute the other tiles, without the series. Here they are called the exact kernels. If the
gradients of query, key and vector are computed together, these maxima do not include wide channels (see
tanh.py), so that one outlier channel does not exclude all tiles from the series. additive_series_wide.py
computes these channels. Here, their basis functions are 0.

Bounds of the error in channel c are below. They do not include the rounding of the result to bfloat16, which
has a relative error of at most 2^-8. i is the index of a query, and j is the index of a key. g_j is g of key
j and the query whose gradient dq is computed:

    not saturated   |error of dq_c| <= 1.1e-3 |v_c| sum_j |g_j|: 2.3e-4 from the series, 2^-11 from g in
                    float16, sqrt(2) 2^-12 sum_n |d_n| = 3.5e-4 from the basis functions in float16
                    |error of dk_c|: the same, with the sum over the queries
                    |error of dv_c| <= 1.3e-3 sum_ij |g_ij|: 1.0e-4, 2^-11 and sqrt(2) 2^-12 sum_n |c_n|
    saturated       |error of dq_c| <= 2^-8 * 4 |v_c| sum_j |g_j| e^-2|q+k|  (2^-9 from the missing terms of
                    the exponential series, 2^-10 from float16); the same for dk_c, over the queries
                    if |q| or |k| > 6.9, add 2e-7 |v_c| sum_j |g_j|: one of the two exponentials is then
                    so small that float16 loses precision

For comparison, eager PyTorch in bfloat16 rounds tanh, and so its derivative, by 2^-9 = 2e-3. From SATURATED
on it rounds tanh to 1, which gives zero gradients for query and key.

g is stored as float16. For dq and dv, each query row of g is scaled by its own power of 2; for dk, each key.
So rows with small output gradients keep their precision next to rows with large output gradients.

Tested: under Triton's interpreter (triton 3.7; with saturated channels, and with rows and keys of very
different scales); before the last change also on an NVIDIA H200 (triton 3.6; with inputs of unit variance).
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

from regard.kernels.additive_wide import wide_in_sequence
from regard.kernels.kernel_mask import end_of
from regard.kernels.matrix_product import product
from regard.kernels.quick_launch import quick_launch
from regard.kernels.series_rows import REACH, near_rows, window_rows
from regard.kernels.tanh import TWICE_LOG2E, flags_of

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

SATURATED = tl.constexpr(3.4657)
"""atanh(1 - 2^-9): from this x on, bfloat16 rounds tanh(x) to 1."""

BASIS = tl.constexpr(32)
"""Number of basis functions of an element x of query or key. The gradient of the scores is multiplied by
these functions of x.

Their order: 15 sines, one exponential (64 e^-2x), 15 cosines, one exponential (64 e^2x)."""

BASIS_ROWS = tl.constexpr(16)
"""Number of rows of query or key that one program of additive_basis_kernel processes. For the elements x of
these rows, it computes the basis functions, and the maximum of x and of -x in each channel."""

FIRST = math.pi / 14.6
"""The lowest frequency, w_0. The other frequencies are its odd multiples: w_n = (2 n + 1) w_0."""

SINES = (
    1.24932719, 0.359549779, 0.164409051, 0.0815131114, 0.0411802715, 0.0209106126, 0.0106468021,
    0.00540587336, 0.00275267508, 0.00141960697, 0.000709355216, 0.000381053997, 0.000188791784,
    0.00017958751, 4.36422403e-05, 0.0,
)  # fmt: skip
"""The coefficients c_n of the sines in the series of tanh, from a minimax fit (iteratively reweighted least
squares). The last coefficient is 0, because the last basis function is not a sine but an exponential."""

COSINES = (
    0.268814698, 0.232124595, 0.176875886, 0.122758259, 0.0797723304, 0.0494817589, 0.0297450635,
    0.0174675162, 0.0100430817, 0.00572534182, 0.00322881466, 0.00176869968, 0.0010029975,
    0.000553199797, 0.000404571272, 0.0,
)  # fmt: skip
"""The coefficients d_n of the cosines in the series of tanh', fitted in the same way as SINES."""

QUARTER = tl.constexpr(math.pi / 2)
"""pi / 2, a quarter of the period of the sine: sin(x + QUARTER) = cos x."""

LARGEST = tl.constexpr(14)
"""The gradient of the scores is scaled to at most 2^LARGEST before it is stored as float16, whose largest
number is almost 2^16."""

EXPONENTIAL = tl.constexpr(64.0)
"""The exponentials e^-2x and e^2x are multiplied by this number before they are stored as float16, so that
fewer of them are below 2^-14, where float16 loses precision.

Only saturated channels use these exponentials, and there they do not overflow. 64 e^-2k is used if
q + k >= SATURATED. Together with |q| + |k| <= REACH, this gives -2k <= REACH - SATURATED = 6.53. So
64 e^-2k <= 64 * 690 = 44,160, and the largest float16 number is 65,504. 64 e^2k is used if
q + k <= -SATURATED; it has the same bound."""

HALF = tl.constexpr(65504.0)
"""The largest finite float16 number."""


@functools.cache
def series(device: torch.device) -> torch.Tensor:
    """Return frequencies w_n, cosine coefficients d_n and sine coefficients c_n as one tensor, (3, BASIS).

    Each row holds 16 values twice, first for the sines and then for the cosines. The tensor is cached,
    because it cannot be copied from the host during CUDA graph capture. The warm-up run before the capture
    creates the tensor.
    """
    frequency = [FIRST * (2 * n + 1) for n in range(len(SINES))]
    return torch.tensor([frequency, COSINES, SINES], dtype=torch.float32).repeat(1, 2).to(device)


@triton.jit
def _exponent(x):
    """Return the exponent bits e of a float32 number x >= 0. Then x < 2^(e - 126)."""
    return x.to(tl.int32, bitcast=True) >> 23


@triton.jit
def scaling(bounds, peak, scale):
    """Return powers of 2 that scale g, the gradient of the scores, to at most 2^LARGEST, and their inverses.

    bounds, peak: upper bounds, such that |g| <= 2 * bounds * peak * |scale|.
    scale: the factor of the score, scale * v . tanh(q + k).

    The powers are computed from the exponent bits with integer arithmetic, so two kernels that call this
    function get exactly the same powers.
    """
    power = LARGEST + 251 - _exponent(bounds) - _exponent(peak * tl.abs(scale))
    power = tl.maximum(tl.minimum(power, 126), -126)
    up, down = (power + 127) << 23, (127 - power) << 23
    return up.to(tl.float32, bitcast=True), down.to(tl.float32, bitcast=True)


@triton.jit
def _sines(x, frequency, shift, APPROXIMATE: tl.constexpr):
    """Return sin(x * frequency + shift) for every element of `x` and every frequency (a new last dimension).

    APPROXIMATE: use the special function unit of the GPU; its absolute error is 2^-14 here.
    """
    angle = x[:, :, None] * frequency[None, None, :] + shift
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.sin(angle)


@triton.jit
def _within(x):
    """Replace elements of x by 0 if they are NaN or |x| > REACH, where the Fourier series is not valid.

    The tiles that contain such elements are computed by the kernels of additive_backward.py instead.
    """
    return tl.where(tl.abs(x) <= REACH, x, 0.0)


@quick_launch
@triton.jit
def additive_basis_kernel(
    source, basis, ranges, constants, of_sequences, whole_of_query, whole_of_key, lengths, length_step, heads,
    count, first_channel, width, padded, batch_step, head_step, row_step, others, groups, pitch,
    WIDTH: tl.constexpr, LENGTHS: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the basis functions of `count` rows and `padded` channels, from channel `first_channel` on.

    The basis functions of an element x are sines and cosines of x, and two exponentials (see BASIS).

    source: reads query or key, whose elements are x, (B, H, count, D).
    constants: reads the result of series().
    basis: writes the basis functions, (B H, count, padded, BASIS), float16.
    ranges: writes the maximum of x and of -x over each block of BASIS_ROWS rows, (B H, blocks, 2, padded),
        float32. Padding rows and elements with |x| > REACH are ignored. In wide channels, writes inf, so that
        additive_series_kernel uses the basis functions, which are 0.
    of_sequences: reads Weighed.ranges, (B H of the query). If a sequence has no tile within REACH, nothing is
        written for it, because its basis functions and ranges are not read.
    whole_of_query, whole_of_key, pitch: see wide_in_sequence().
    others: number of query heads for each head of `source`. groups: the same for each head of the key.
    Launch grid: (blocks of rows, blocks of WIDTH channels, B H).
    """
    both = tl.program_id(2).to(tl.int64)
    flags = flags_of(of_sequences, both * others, others)
    if (flags & 1) == 0:
        return
    rows = tl.program_id(0) * BASIS_ROWS + tl.arange(0, BASIS_ROWS)
    local = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    channels = first_channel + local
    inside = (rows < count)[:, None] & (channels < width)[None, :]
    wide = wide_in_sequence(
        flags, whole_of_query, whole_of_key, both * others // groups, groups, pitch, channels,
        channels < width,
    )  # fmt: skip
    at = source + both // heads * batch_step + both % heads * head_step
    at += rows.to(tl.int64)[:, None] * row_step + channels[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    end = end_of(lengths, length_step, both // heads, count, LENGTHS)
    counts = (tl.abs(x) <= REACH) & (rows < end)[:, None]
    range_at = ranges + (both * tl.num_programs(0) + tl.program_id(0)) * 2 * padded + local
    least = tl.where(wide != 0, float("inf"), float("-inf"))
    largest = tl.maximum(least, tl.max(tl.where(counts, x, float("-inf")), 0))
    tl.store(range_at, largest, mask=local < padded)
    largest = tl.maximum(least, tl.max(tl.where(counts, -x, float("-inf")), 0))
    tl.store(range_at + padded, largest, mask=local < padded)
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
    if (flags & 4) != 0:  # a branch takes less time than tl.where() of all elements
        tl.debug_barrier()  # because the stores below overwrite elements that were stored above
        zeros = tl.zeros([BASIS_ROWS, WIDTH, BASIS], tl.float16)
        tl.store(place + term[None, None, :], zeros, mask=(there & (wide != 0)[None, :])[:, :, None])


@triton.jit
def _maximum(ranges, low, high, blocks, padded, CHANNELS: tl.constexpr):
    """Return the maximum of each channel over all blocks of rows that overlap the rows `low` to `high`.

    The first and the last block may contain other rows too, so the result is an upper bound.

    ranges: pointer to the maximum of x, or of -x, in each block; see additive_basis_kernel.
    """
    found = tl.full([CHANNELS], float("-inf"), tl.float32)
    for first in range(low // BASIS_ROWS, tl.cdiv(high, BASIS_ROWS), 16):
        block = first + tl.arange(0, 16)
        at = ranges + block[:, None] * (2 * padded) + tl.arange(0, CHANNELS)[None, :]
        found = tl.maximum(found, tl.max(tl.load(at, mask=(block < blocks)[:, None], other=float("-inf")), 0))
    return found


@triton.jit
def _last(sums):
    """Return the last element of `sums` in dimension 2.

    `sums` holds products of g, the gradient of the scores, with 15 sines or cosines and one exponential; the
    last element is the product with the exponential.
    """
    term = tl.arange(0, sums.shape[2])
    return tl.sum(tl.where((term == sums.shape[2] - 1)[None, None, :], sums, 0.0), 2)


@triton.jit
def _saturation(x, ranges, with_sine, with_cosine, low, high, blocks, padded, CHANNELS: tl.constexpr):
    """Return which channels of each row are saturated, and the sum of g e^-2|x + y| for these channels.

    x stands for the elements of the tensor whose gradient is computed: query or key. y stands for the
    elements of the other tensor in the rows `low` to `high`. g is the gradient of the scores. A channel of a
    row is saturated if tanh(x + y) is almost 1 for all y, or almost -1 for all y.

    x: (ROWS, CHANNELS).
    with_sine, with_cosine: the products of g with the basis functions; the last element of each is the
        product with an exponential (see BASIS).

    Returns three tensors, (ROWS, CHANNELS): whether x + y >= SATURATED for all y; whether x + y <= -SATURATED
    for all y; and the sum.
    """
    above = x - _maximum(ranges + padded, low, high, blocks, padded, CHANNELS)[None, :] >= SATURATED
    below = x + _maximum(ranges, low, high, blocks, padded, CHANNELS)[None, :] <= -SATURATED
    own = tl.exp2(tl.where(above, -x, x) * TWICE_LOG2E) * (1.0 / EXPONENTIAL)
    return above, below, own * tl.where(above, _last(with_sine), _last(with_cosine))


@triton.jit
def _row_sums(tanhs, tail, above, below, rest):
    """Return the sum of g tanh(q + k) for each row, over the keys of tiles within REACH.

    g is the gradient of the scores. A tile is within REACH if its largest |q| + largest |k| is at most REACH.
    A channel of a row is saturated if |q + k| >= SATURATED, with the same sign, for all keys.

    tanhs: the result for channels that are not saturated, computed by the Fourier series.
    tail: the sum of g e^-2|q + k|, for saturated channels.
    above, below: whether a channel is saturated with q + k > 0, and whether it is saturated with q + k < 0.
    rest: the sum of g over the keys of the tiles that are not within REACH.

    In saturated channels with q + k > 0, tanh(q + k) is replaced by 1 - 2 e^-2|q + k|. The sum of g over all
    keys is 0, so the sum of g over the keys within REACH is -rest. The result is therefore -(rest + 2 tail).
    If q + k < 0, the sign changes.
    """
    ends = rest[:, None] + 2.0 * tail
    return tl.where(above, -ends, tl.where(below, ends, tanhs))


# Arguments of additive_series_kernel. With QUERY, the own side is the query and the other side is the key;
# otherwise the own side is the key. In shapes, `own` and `other` are the numbers of rows of the two sides.
# g is the gradient of v . tanh(q + k); the exact kernels are those of additive_backward.py.
#
# gradients            reads g, scaled, in float16, (B H, own, other); 0 where masked or in tiles beyond REACH
# own                  reads the query or the key
# basis, ranges        reads the results of additive_basis_kernel for the other side
# constants            reads w_n, d_n and c_n; see series()
# reach_of_own, reach_of_other
#                      reads the largest |element| of each tile and span of the two sides; OWN_TILE,
#                      OTHER_TILE: rows of such a tile; own_reach, other_reach: stride of a sequence
# bounds, peaks        reads the arguments of scaling(), to undo the scale of g: (B H, own) and (B H,)
# beyond               reads the sum of g over the tiles beyond REACH, (B H, own)
# exact                reads the sums over the tiles beyond REACH from the exact kernels, (exact_parts, B H,
#                      own, D), and adds them to the result
# found                writes the gradient of the own side, (B H, own, D); B K instead of B H for the key
# dvector              with QUERY, writes one partial sum of dv per program, (B H, row tiles, D), with strides
#                      dvector_head and dvector_row
# of_sequences         reads Weighed.ranges. Without a tile within REACH, `found` is not written. Without a
#                      tile beyond REACH, `exact` is not read, unless ADD is True
# offset, before, after
#                      the window: row i attends at most to rows i + offset - before to i + offset + after of
#                      the other side; BEFORE, AFTER: whether there is such a limit
# Launch grid: (row tiles, blocks of CHANNELS channels, B H or B K).
@quick_launch
@triton.jit
def additive_series_kernel(
    gradients, own, basis, ranges, constants, reach_of_own, reach_of_other, vector, bounds, peaks, beyond,
    found, exact, dvector, of_sequences,
    heads, groups, own_count, other_count, first_channel, width, padded, scale,
    gradients_head, gradients_row, own_batch, own_head, own_row, vector_head, bounds_head, beyond_head,
    found_head, exact_head, exact_part, exact_parts, dvector_head, dvector_row, offset, before, after,
    own_reach, other_reach, spans, OWN_TILE: tl.constexpr, OTHER_TILE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, QUERY: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute dq (if QUERY is True) or dk by the Fourier series, for ROWS rows and CHANNELS channels.

    The formulas are at the top of this file. If QUERY is True, dv is computed too.
    """
    WIDE: tl.constexpr = CHANNELS * BASIS
    own_both = tl.program_id(2).to(tl.int64)
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    channels = first_channel + tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    step = tl.full([], 0, tl.int64) + padded * BASIS
    here, there, key_heads = local < own_count, channels < width, heads // groups
    inside = here[:, None] & there[None, :]
    if QUERY:
        batch, first_head, walks, own_heads = own_both // heads, own_both % heads, 1, heads
    else:
        batch, first_head, walks = own_both // key_heads, own_both % key_heads * groups, groups
        own_heads = key_heads
    low, high = window_rows(other_count, offset, before, after, BEFORE, AFTER, ROWS, COLUMNS)
    own_at = own + batch * own_batch + own_both % own_heads * own_head
    own_at += local.to(tl.int64)[:, None] * own_row + channels[None, :]
    dvector_at = dvector + own_both * dvector_head + tl.program_id(0) * dvector_row + channels
    blocks = tl.cdiv(other_count, BASIS_ROWS)
    total, term = tl.zeros([ROWS, CHANNELS], tl.float32), tl.arange(0, BASIS // 2)
    flags = flags_of(of_sequences, batch * heads + first_head, walks)
    if (flags & 1) == 0:
        if QUERY:
            tl.store(dvector_at, tl.zeros([CHANNELS], tl.float32), mask=there)
        return
    for walk in range(walks):
        head = first_head + walk
        both = batch * heads + head
        other = batch * key_heads + head // groups if QUERY else both
        gradient_at = gradients + both * gradients_head + local.to(tl.int64)[:, None] * gradients_row
        sums = tl.zeros([ROWS, WIDE], tl.float32)
        of_own, of_other = reach_of_own + own_both * own_reach, reach_of_other + other * other_reach
        near = near_rows(of_own, of_other, spans, ROWS, own_count, low, high, OWN_TILE, OTHER_TILE)
        for start in range(near[0] // COLUMNS * COLUMNS, near[1], COLUMNS):
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
        saturated = _saturation(x, range_at, with_sine, with_cosine, low, high, blocks, padded, CHANNELS)
        above, below, tail = saturated
        frequency = tl.load(constants + term)
        sine, cosine = _sines(x, frequency, 0.0, APPROXIMATE), _sines(x, frequency, QUARTER, APPROXIMATE)
        slope = tl.load(constants + BASIS + term)[None, None, :]
        slopes = tl.sum((cosine * with_cosine - sine * with_sine) * slope, 2)
        total += tl.where(above | below, 4.0 * tail, slopes) * undone[:, None] * v[None, :]
        if QUERY:
            size = tl.load(constants + 2 * BASIS + term)[None, None, :]
            tanhs = tl.sum((cosine * with_sine + sine * with_cosine) * size, 2) * undone[:, None]
            rest = tl.load(beyond + both * beyond_head + local, mask=here, other=0.0)
            of_rows = _row_sums(tanhs, tail * undone[:, None], above, below, rest)
            tl.store(dvector_at, tl.sum(of_rows, 0), mask=there)
    at = local.to(tl.int64)[:, None] * width + channels[None, :]
    if ((flags & 2) != 0) | ADD:
        for part in range(exact_parts):
            place = exact + part * exact_part + own_both * exact_head + at
            total += tl.load(place, mask=inside, other=0.0)
    tl.store(found + own_both * found_head + at, total, mask=inside)
