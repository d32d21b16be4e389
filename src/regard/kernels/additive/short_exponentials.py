# mypy: disable-error-code="no-untyped-def"
"""The numbers that additive_short_kernel computes with: e^2k of keys that it loads, and e^2q; see there.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.tanh import FLOOR, TWICE_LOG2E, exponential

__all__ = [
    "exponential_of_key",
    "exponential_of_query",
    "four_keys",
    "four_packed",
    "has_wide",
    "packed_keys",
    "sizes_of",
    "two_floats",
]

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
