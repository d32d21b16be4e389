# mypy: disable-error-code="no-untyped-def"
"""Compute tanh(q + k) and its derivative from e^2q and e^2k, which are computed once per row.

    tanh(q + k) = 1 - 2 r,   r = 1 / (1 + e^2q e^2k),   tanh' = 1 - tanh^2 = 4 (r - r^2)

From e^2q and e^2k, r is computed with one multiply-add and one reciprocal, as accurately as float32 allows.
If terms v r are summed, several of them can share one reciprocal: v1 / x + v2 / y = (v1 y + v2 x) / (x y),
where x and y are the denominators of two terms.

The product of several denominators must neither overflow nor underflow. So each denominator is scaled and
limited: x = min(FLOOR (1 + e^2q e^2k), 1), between FLOOR = 2^-30 and 1. A product of four of them is at least
2^-120. The limit changes r by at most 2^-30, which is less than half a rounding step of tanh in float32. On
a GPU the limit costs no instruction: multiply-add has a variant that limits the result to [0, 1].
The kernels call the result of exponential() "e^2q" or "e^2k"; it contains the factor 2^-15, so that the
product of two has the factor FLOOR.

exponential() is valid for -LIMIT <= x <= CEILING, and limited() limits x to this range. This changes
tanh(q + k) noticeably only if one of q and k is below -LIMIT and the other one is above 29 (33 in half
precision; see TOP). A channel is called wide if the query has one of these elements there and the key the
other one, or if one of them has a NaN. The kernels compute a wide channel from q + k, with exact_share().

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "CENTRE",
    "FLOOR",
    "LIMIT",
    "LOG2E",
    "SCALE",
    "TOP",
    "TOP_HALF",
    "TWICE_LOG2E",
    "denominator",
    "exact_share",
    "exponential",
    "furthest",
    "is_wide",
    "limited",
    "lowest",
    "multiply_add",
    "packed",
    "reciprocal",
    "shared_sum",
]

LOG2E = tl.constexpr(1.4426950408889634)
"""1 / ln 2: e^x = 2^(LOG2E x)."""

TWICE_LOG2E = tl.constexpr(2.8853900817779268)
"""2 / ln 2: e^2x = 2^(TWICE_LOG2E x)."""

_HALF_LN2 = tl.constexpr(0.34657287597656250)
"""ln(2) / 2, rounded to 16 bits, so that products with integers up to 2^8 are exact in float32."""

_HALF_LN2_REST = tl.constexpr(7.143034101431134e-07)
"""ln(2) / 2 - _HALF_LN2."""

FLOOR = tl.constexpr(2.0**-30)
"""The smallest denominator, for e^2q e^2k = 0. Denominators are between FLOOR and 1."""

SCALE = tl.constexpr(2.0**30)
"""1 / FLOOR. The reciprocal of a denominator is SCALE * r."""

CENTRE = tl.constexpr(2.0**29)
"""SCALE / 2, the reciprocal of a denominator where q + k = 0 and r = 1/2."""

LIMIT = tl.constexpr(38.0)
"""exponential() is valid for x >= -LIMIT: at -LIMIT its result is 2^-124.6, and below 2^-126 float32 loses
precision."""

CEILING = tl.constexpr(49.0)
"""exponential() is valid for x <= CEILING: there its result is 2^126.4, and float32 ends at 2^128."""

TOP, TOP_HALF = tl.constexpr(29.0), tl.constexpr(33.0)
"""A channel with an element below -LIMIT is wide if the other tensor has an element above TOP there (TOP_HALF
in half precision). Otherwise, limited() changes tanh(q + k) by at most 2 e^(2 TOP - 2 LIMIT): 3e-8, or 9e-5
in half precision."""


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """Return 1 / x.

    APPROXIMATE: use the special function unit of the GPU. Its error can be one rounding step larger.
    """
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def multiply_add(a, b, c, APPROXIMATE: tl.constexpr):
    """Return a * b + c, rounded once.

    On a GPU, the compiler chooses the instruction that does so. In the interpreter, float64 has the same
    effect.
    """
    if APPROXIMATE:
        return a * b + c
    return (a.to(tl.float64) * b.to(tl.float64) + c).to(tl.float32)


@triton.jit
def exponential(x, PRECISE: tl.constexpr):
    """Return 2^-15 e^2x for |x| <= LIMIT.

    PRECISE: split x into a multiple of ln(2) / 2 and a rest, so that the relative error stays at a few
        rounding steps for large |x|. Otherwise the result loses up to six of its 24 bits, which does not
        matter if the inputs are in half precision.
    """
    if PRECISE:
        number = tl.floor(x * TWICE_LOG2E + 0.5)
        rest = (x - number * _HALF_LN2) - number * _HALF_LN2_REST
        return tl.exp2(rest * TWICE_LOG2E) * tl.exp2(number - 15.0)
    return tl.exp2(x * TWICE_LOG2E - 15.0)


@triton.jit
def limited(x):
    """Return x, limited to -LIMIT and CEILING, and -LIMIT for NaN. Its exponential() is finite."""
    return tl.where(x > CEILING, CEILING, tl.where(x >= -LIMIT, x, -LIMIT))


@triton.jit
def is_wide(of_query, of_key, SHIFT: tl.constexpr):
    """Return 1 for wide channels, otherwise 0, from the flags of query and key.

    The flags of a channel are 1 if it has an element below -LIMIT, plus 1 << SHIFT if it has one above TOP
    (TOP_HALF in half precision), plus 1 << 2 * SHIFT if it has a NaN.
    """
    crossed = (of_query & (of_key >> SHIFT)) | (of_key & (of_query >> SHIFT))
    return (crossed | ((of_query | of_key) >> (2 * SHIFT))) & 1


@triton.jit
def denominator(query, key, APPROXIMATE: tl.constexpr):
    """Return min(FLOOR (1 + e^2q e^2k), 1).

    query, key: the results of exponential(); 0 is allowed, NaN is not.
    """
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, 0f30800000;", "=f,f,f", [query, key],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.minimum(multiply_add(query, key, FLOOR, APPROXIMATE), 1.0)


@triton.jit
def furthest(reach, tile, spans):
    """Return the largest |x| of a tile.

    reach: pointer to the largest |x| of each tile and span (range of SPAN channels), (tiles, spans).
    """
    found = tl.load(reach + tile * spans)
    for span in range(1, spans):
        found = tl.maximum(found, tl.load(reach + tile * spans + span))
    return found


@triton.jit
def packed(flags):
    """Return 64 flags, 0 or 1, as the bits of one int64, from which lowest() finds them without loads."""
    return tl.sum(flags.to(tl.int64) << tl.arange(0, 64).to(tl.int64), 0)


@triton.jit
def lowest(bits):
    """Return the index of the lowest bit of an int64 that is 1; `bits` is not 0.

    bits & -bits has this bit only, so its conversion to float32 is exact, with the index as exponent.
    """
    return (((bits & -bits).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit
def exact_share(x, APPROXIMATE: tl.constexpr):
    """Return r = 1 / (1 + e^2x) for x = q + k. It cannot overflow; r is NaN if x is NaN."""
    power = tl.minimum(x * TWICE_LOG2E, 126.0, propagate_nan=tl.PropagateNan.ALL)
    return reciprocal(1.0 + tl.exp2(power), APPROXIMATE)


@triton.jit
def _loaded(query, key, query_step: tl.constexpr, key_step: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Load e^2q and e^2k, and return their denominator(), (4, 4, threads).

    query, key: pointers to e^2q and e^2k in the first channel, (4, threads).
    query_step, key_step: offsets of the channel to load.
    """
    q, k = tl.load(query + query_step), tl.load(key + key_step)
    return denominator(q[:, None, :], k[None, :, :], APPROXIMATE)


@triton.jit
def shared_sum(
    query,
    key,
    vector,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    CENTRED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Return SCALE times the sum of v tanh(q + k) over GROUP channels (1, 2 or 4), with one reciprocal.

    query: pointers to e^2q in the first channel, (4, threads); the next channel is ROWS elements further.
    key: pointers to e^2k in the first channel, (4, threads); the next channel is COLUMNS elements further.
    vector: pointer to -2 v of the first channel.
    CENTRED: if False, return SCALE times the sum of -2 v r instead, and the caller adds the sum of v at the
        end. This needs fewer operations, but the accumulator then holds larger numbers and loses some
        precision.
    Returns (4, 4, threads).
    """
    x, v = _loaded(query, key, 0, 0, APPROXIMATE), tl.load(vector)
    above, below, total = v, x, v
    if GROUP >= 2:
        x2, v2 = _loaded(query, key, ROWS, COLUMNS, APPROXIMATE), tl.load(vector + 1)
        above, below, total = v * x2 + v2 * x, x * x2, total + v2
    if GROUP == 4:
        x3, v3 = _loaded(query, key, 2 * ROWS, 2 * COLUMNS, APPROXIMATE), tl.load(vector + 2)
        x4, v4 = _loaded(query, key, 3 * ROWS, 3 * COLUMNS, APPROXIMATE), tl.load(vector + 3)
        below2 = x3 * x4
        above, below = above * below2 + (v3 * x4 + v4 * x3) * below, below * below2
        total += v3 + v4
    found = above * reciprocal(below, APPROXIMATE)
    # `vector` holds -2 v.
    return found - total * CENTRE if CENTRED else found
