# mypy: disable-error-code="no-untyped-def"
"""Compute tanh(q + k) and its derivative from e^2q and e^2k, which are computed once per row.

    tanh(q + k) = 1 - 2 r,   r = 1 / (1 + e^2q e^2k),   tanh' = 1 - tanh^2 = 4 (r - r^2)

From e^2q and e^2k, r is computed with one multiply-add and one reciprocal, as accurately as float32 allows.
If terms v r are summed, several of them can share one reciprocal: v1 / x + v2 / y = (v1 y + v2 x) / (x y),
where x and y are the denominators 1 + e^2q e^2k of two terms. Where the product x y could overflow, the
kernels call exact_share(), which computes r from q + k and cannot overflow.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "BITS",
    "LOG2E",
    "TWICE_LOG2E",
    "exact_share",
    "exponential",
    "furthest",
    "reciprocal",
    "shared_sum",
]

LOG2E = tl.constexpr(1.4426950408889634)
"""1 / ln 2: e^x = 2^(LOG2E x)."""

TWICE_LOG2E = tl.constexpr(2.8853900817779268)
"""2 / ln 2: e^2x = 2^(TWICE_LOG2E x)."""

BITS = tl.constexpr(120.0)
"""Terms v1 / x + v2 / y + ... are added with one reciprocal, 1 / (x y ...), only if the product x y ... is at
most 2^BITS. Float32 overflows at 2^128. BITS is smaller for two reasons: the 1 in x = 1 + e^2q e^2k is
ignored when the product is estimated, and the numerators also have the factors v1, v2, ..."""


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
def exponential(x):
    """Return e^2x, clamped to the range of float32; NaN if x is NaN."""
    held = tl.maximum(x * TWICE_LOG2E, -126.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(tl.minimum(held, 126.0, propagate_nan=tl.PropagateNan.ALL))


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
def exact_share(x, APPROXIMATE: tl.constexpr):
    """Return r = 1 / (1 + e^2x) for x = q + k. It cannot overflow; r is NaN if x is NaN."""
    power = tl.minimum(x * TWICE_LOG2E, 126.0, propagate_nan=tl.PropagateNan.ALL)
    return reciprocal(1.0 + tl.exp2(power), APPROXIMATE)


@triton.jit
def _denominator(query, key, query_step: tl.constexpr, key_step: tl.constexpr):
    """Return 1 + e^2q e^2k, (4, 4, threads).

    query, key: pointers to e^2q and e^2k in the first channel, (4, threads).
    query_step, key_step: offsets of the channel to load.
    """
    return 1.0 + tl.load(query + query_step)[:, None, :] * tl.load(key + key_step)[None, :, :]


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
    """Return the sum of v tanh(q + k) over GROUP channels (1, 2 or 4), with one reciprocal.

    query: pointers to e^2q in the first channel, (4, threads); the next channel is ROWS elements further.
    key: pointers to e^2k in the first channel, (4, threads); the next channel is COLUMNS elements further.
    vector: pointer to -2 v of the first channel.
    CENTRED: if False, return the sum of -2 v r instead, and the caller adds the sum of v at the end. This
        needs fewer operations, but the accumulator then holds larger numbers and loses some precision.
    Returns (4, 4, threads).
    """
    x, v = _denominator(query, key, 0, 0), tl.load(vector)
    above, below, total = v, x, v
    if GROUP >= 2:
        x2, v2 = _denominator(query, key, ROWS, COLUMNS), tl.load(vector + 1)
        above, below, total = v * x2 + v2 * x, x * x2, total + v2
    if GROUP == 4:
        x3, v3 = _denominator(query, key, 2 * ROWS, 2 * COLUMNS), tl.load(vector + 2)
        x4, v4 = _denominator(query, key, 3 * ROWS, 3 * COLUMNS), tl.load(vector + 3)
        below2 = x3 * x4
        above, below = above * below2 + (v3 * x4 + v4 * x3) * below, below * below2
        total += v3 + v4
    found = above * reciprocal(below, APPROXIMATE)
    # `vector` holds -2 v.
    return found - 0.5 * total if CENTRED else found
