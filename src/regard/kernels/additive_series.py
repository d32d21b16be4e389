# mypy: disable-error-code="no-untyped-def"
"""The gradients of query, key and vector as matrix products, in bfloat16: tanh and its slope as few waves.

    tanh(x) = sum_n c_n sin(w_n x)     tanh'(x) = sum_n d_n cos(w_n x)     for |x| <= REACH
    sin(w (q + k)) = sin wq cos wk + cos wq sin wk

so that what depends on the query and what depends on the key come apart, and the sums over keys, or over
queries, are matrix products of the gradient of the scores with waves: the sines and cosines of each channel.
With A_n and B_n the products with sin and with cos of the other side,

    dq = v sum_n d_n (cos(w_n q) B_n - sin(w_n q) A_n)
    dv = the sum over rows of sum_n c_n (cos(w_n q) A_n + sin(w_n q) B_n)

Few waves make tanh to 8e-5 and its slope to 1.6e-4, and in float16, as products take them, to 6e-4 and 4e-4,
where half the last bit of a bfloat16 of about 1 is 2e-3. Where |q + k| is beyond 6 the slope is smaller than
all that, and eager PyTorch in bfloat16 takes it for 0. Tiles that reach further than REACH are left to the
exact kernels.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

from regard.kernels.product import product

__all__ = ["REACH", "WAVES", "additive_series_kernel", "additive_waves_kernel", "scaled_by", "series"]

REACH = tl.constexpr(10.0)
"""How far from 0 the sum of a query and a key may be."""

WAVES = tl.constexpr(32)
"""Waves of a channel: 16 sines, then 16 cosines."""

FIRST = math.pi / 14.75
"""The lowest frequency; the others are its odd multiples."""

SINES = (
    1.24980188, 0.360720909, 0.165764155, 0.0826804863, 0.0420464314, 0.0214965604, 0.0110126359,
    0.0056293362, 0.00288626925, 0.00148547398, 0.000747751403, 0.000393030368, 0.000199661915,
    0.000134193343, 1.64549132e-06, -4.12567734e-06,
)  # fmt: skip
"""c_n: fitted by least squares, reweighted until the largest error was least."""

COSINES = (
    0.266178739, 0.230519492, 0.176518359, 0.123248133, 0.0806339722, 0.0503551599, 0.0304588872,
    0.0180312905, 0.0104434455, 0.00595752527, 0.00341887184, 0.0018998942, 0.00101180427,
    0.000634185981, 0.000329173543, 0.000209174717,
)  # fmt: skip
"""d_n, likewise."""

QUARTER = tl.constexpr(math.pi / 2)
"""Of a turn: sin(x + QUARTER) = cos x."""

LARGEST = tl.constexpr(14.0)
"""Gradients of scores are scaled so that none is larger than 2 to this power, as float16 holds them best."""


@functools.cache
def series(device: torch.device) -> torch.Tensor:
    """Frequencies, and what the products with each wave are multiplied by for dq, and for dv: (3, WAVES), of
    the sines and once more of the cosines. Kept by the first run, which a capture needs before it anyway."""
    frequency = [FIRST * (2 * n + 1) for n in range(len(SINES))]
    return torch.tensor([frequency, COSINES, SINES], dtype=torch.float32).repeat(1, 2).to(device)


@triton.jit
def scaled_by(bound, scale):
    """A power of 2 by which no gradient of a score, at most 2 bound scale, becomes larger than 2^LARGEST."""
    most = 2.0 * tl.load(bound) * tl.abs(scale)
    power = tl.floor(tl.log2(tl.where(most > 0.0, most, 1.0)) * -1.0 + LARGEST)
    held = tl.maximum(power, -126.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(tl.minimum(held, 126.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _sines(x, frequency, shift, APPROXIMATE: tl.constexpr):
    """sin of each number at each frequency, a dimension more, shifted by some radians: by the unit that is
    exact to 2^-14 that far where there is one. Of what is beyond REACH, which is in no tile that is near and
    may be no number, that of 0."""
    x = tl.where(tl.abs(x) <= REACH, x, 0.0)
    angle = x[:, :, None] * frequency[None, None, :] + shift
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.sin(angle)


@triton.jit
def additive_waves_kernel(
    source, waves, constants, heads, count, first_channel, width, padded,
    batch_step, head_step, row_step,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The waves of `count` rows and `padded` channels from first_channel on: (B H, count, padded, WAVES),
    float16."""
    both = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    local = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    channels = first_channel + local
    inside = (rows < count)[:, None] & (channels < width)[None, :]
    at = source + both // heads * batch_step + both % heads * head_step
    at += rows.to(tl.int64)[:, None] * row_step + channels[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    wave = tl.arange(0, WAVES)
    shift = tl.where(wave < WAVES // 2, 0.0, QUARTER)[None, None, :]
    found = _sines(x, tl.load(constants + wave), shift, APPROXIMATE)
    place = waves + ((both * count + rows)[:, None] * padded + local[None, :])[:, :, None] * WAVES
    there = (rows < count)[:, None] & (local < padded)[None, :]
    tl.store(place + wave[None, None, :], found.to(tl.float16), mask=there[:, :, None])


@triton.jit
def additive_series_kernel(
    gradients, own, waves, constants, vector, bound, found, exact, dvector,
    heads, groups, own_count, other_count, first_channel, width, padded, scale,
    gradients_head, gradients_row, own_batch, own_head, own_row, vector_head, found_head, exact_head,
    exact_part, exact_parts, dvector_row, offset, before, after,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, QUERY: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The gradient of some rows of the query, or of some keys, over some channels, from those rows, the waves
    of the other side and the scaled gradient of the scores, (B H, own, other), which is 0 wherever it is not
    wanted.

    own: the rows. bound: of the gradients of each sequence and head. exact: what the exact kernels found, in
    float32, in some parts, which is added; (B H, own, D) each, as `found`. offset, before, after: the own row
    i sees others from i + offset - before to i + offset + after at most. QUERY: whether the own side is that
    of the query, which gives dvector too: one row a program, to be summed.
    """
    WIDE: tl.constexpr = CHANNELS * WAVES
    own_both = tl.program_id(2).to(tl.int64)
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    channels = first_channel + tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    step = tl.full([], 0, tl.int64) + padded * WAVES
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
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for walk in range(walks):
        head = first_head + walk
        both = batch * heads + head
        other = batch * key_heads + head // groups if QUERY else both
        gradient_at = gradients + both * gradients_head + local.to(tl.int64)[:, None] * gradients_row
        sums = tl.zeros([ROWS, WIDE], tl.float32)
        for start in range(low, high, COLUMNS):
            others = start + tl.arange(0, COLUMNS)
            g = tl.load(
                gradient_at + others[None, :], mask=here[:, None] & (others < other_count)[None, :], other=0.0
            )
            wave_at = waves + (other * other_count + others)[:, None] * step + columns[None, :]
            some = tl.load(wave_at, mask=(others < other_count)[:, None], other=0.0)
            sums = product(g, some, sums, PRECISION)
        undone = 1.0 / scaled_by(bound + both, scale)
        v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
        by_wave = tl.reshape(sums, [ROWS, CHANNELS, 2, WAVES // 2])
        with_sine, with_cosine = tl.split(tl.permute(by_wave, (0, 1, 3, 2)))
        x = tl.load(own_at, mask=inside, other=0.0).to(tl.float32)
        wave = tl.arange(0, WAVES // 2)
        frequency = tl.load(constants + wave)
        sine, cosine = _sines(x, frequency, 0.0, APPROXIMATE), _sines(x, frequency, QUARTER, APPROXIMATE)
        slope = tl.load(constants + WAVES + wave)[None, None, :]
        total += tl.sum((cosine * with_cosine - sine * with_sine) * slope, 2) * (v * undone)[None, :]
        if QUERY:
            size = tl.load(constants + 2 * WAVES + wave)[None, None, :]
            of_vector = tl.sum(tl.sum((cosine * with_sine + sine * with_cosine) * size, 2), 0) * undone
            program = own_both * tl.num_programs(0) + tl.program_id(0)
            tl.store(dvector + program * dvector_row + channels, of_vector, mask=there)
    at = local.to(tl.int64)[:, None] * width + channels[None, :]
    for part in range(exact_parts):
        place = exact + part * exact_part + own_both * exact_head + at
        total += tl.load(place, mask=inside, other=0.0)
    tl.store(found + own_both * found_head + at, total, mask=inside)
