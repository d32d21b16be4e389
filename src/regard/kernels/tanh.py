# mypy: disable-error-code="no-untyped-def"
"""tanh without a tanh: its sums and slopes from exponentials that are taken once a row.

    tanh(q + k) = 1 - 2 r,   r = 1 / (1 + e^2q e^2k),   the slope 1 - tanh^2 = 4 (r - r^2)

so that each element costs one multiply-add and one reciprocal at the accuracy of float32, and several
elements can share a reciprocal: v1 / x + v2 / y = (v1 y + v2 x) / (x y). Where a product could overflow, the
kernels take exact_share, which is given q + k itself and cannot.

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
"""How many of the 127 binary places of a float32 the product in a shared reciprocal may fill."""


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """1 / x, by the unit that is a rounding step less exact where there is one."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def exponential(x):
    """e^2x, held within what a float32 can say; of what is no number, none."""
    held = tl.maximum(x * TWICE_LOG2E, -126.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(tl.minimum(held, 126.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def furthest(reach, tile, spans):
    """How far from 0 a tile reaches, over all spans of its channels."""
    found = tl.load(reach + tile * spans)
    for span in range(1, spans):
        found = tl.maximum(found, tl.load(reach + tile * spans + span))
    return found


@triton.jit
def exact_share(x, APPROXIMATE: tl.constexpr):
    """r of one element from x = q + k, for any x; of what is no number, none."""
    power = tl.minimum(x * TWICE_LOG2E, 126.0, propagate_nan=tl.PropagateNan.ALL)
    return reciprocal(1.0 + tl.exp2(power), APPROXIMATE)


@triton.jit
def _denominator(query, key, query_step: tl.constexpr, key_step: tl.constexpr):
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
    """The sum of v tanh over GROUP channels, 1, 2 or 4; without CENTRED that of -2 v r, which lacks the sum
    of v and, since it wanders further from 0 while it is added up, some of the last bit of a float32.

    query, key, vector: where the exponentials and the v of the first channel are; of the exponentials, those
    of the next channel stand ROWS and COLUMNS on.
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
    # The vector that kernels are given holds -2 v.
    return found - 0.5 * total if CENTRED else found
