# mypy: disable-error-code="no-untyped-def"
"""Additive attention of one step of a recurrent decoder in training, with the gates of its cell.

The context c = sum of weight_j h_j enters the gates z, r and s~ only as C c = sum of weight_j (C h_j). So the
products C h_j ("projected values") are computed once for all steps, and a step needs no product with C. One
kernel then computes scores, softmax, C c, z, r and r * s of a sequence. In the backward pass, one kernel
computes the gradients of r, of the scores and of the query.

layers/projected_steps.py calls these kernels. layers/gated_cell.py explains the cell.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.aligned_sizes import units
from regard.kernels.mask import end_of
from regard.kernels.recurrent.attention_gradients import columns_of, length_step, tanh

__all__ = ["attend_gated", "attend_gated_backward"]

TILE, WARPS = 32768, 8
"""Number of elements of the keys that a program loads at once, and its number of warps. Of the projected
values, it loads twice as many elements: then each thread has all keys of its columns, so that the sum over
the keys needs no exchange between threads. With half as many, a step took 34 instead of 23 microseconds."""


@triton.jit
def _load(pointer, at, there):
    """Load elements as float32; 0 where `there` is False."""
    return tl.load(pointer + at, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["both_part", "inputs_row"])
def additive_gated_kernel(
    both, key, projected, vector, lengths, inputs, state, gates, reset, query, weights, length_step, keys,
    hidden, width, both_part, both_row, key_batch, key_row, projected_batch, projected_row, inputs_row,
    UNIT: tl.constexpr, PARTS: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute weights = softmax(v . tanh(q + k)) and the gates of one sequence.

    z, r = sigma(W e + U s + C c)     C c = weights . projected

    both: reads PARTS tensors (B, hidden + 2 width); their sum is the query q, and U s for z and r.
    key, projected: read (B, S, hidden) and (B, S, 3 width). vector: reads v, (hidden,).
    lengths: reads the number of keys of each sequence, (B,).
    inputs: reads W e, (B, 3 width). state: reads s, (B, width).
    gates: writes z, r and, for the candidate state, W e + C c, (B, 3 width). reset: writes r * s, (B, width).
    query: writes q, (B, hidden). weights: writes (B, S), 0 for padding.
    UNIT: hidden, width and all strides are in units of this number of elements, see units().
    """
    hidden, width, inputs_row = hidden * UNIT, width * UNIT, inputs_row * UNIT
    both_part, both_row = both_part * UNIT, both_row * UNIT
    key_batch, key_row = key_batch * UNIT, key_row * UNIT
    projected_batch, projected_row = projected_batch * UNIT, projected_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (slot < end)[:, None]
    both += batch * both_row
    key += batch * key_batch + slot[:, None] * key_row
    projected += batch * projected_batch + slot[:, None] * projected_row
    inputs += batch * inputs_row
    gates += batch * 3 * width
    channel = tl.arange(0, HIDDEN)
    v = _load(vector, channel, channel < hidden)
    scores = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, hidden, HIDDEN):
        channel = first + tl.arange(0, HIDDEN)
        there = channel < hidden
        k = _load(key, channel[None, :], seen & there[None, :])
        q = _load(both, channel, there)
        for part in tl.static_range(1, PARTS):
            q += _load(both, part * both_part + channel, there)
        if first > 0:
            v = _load(vector, channel, there)
        tl.store(query + batch * hidden + channel, q, mask=there)
        scores += tl.sum(v[None, :] * tanh(q[None, :] + k, HALF, APPROXIMATE), 1)
    scores = tl.where(slot < end, scores, -float("inf"))
    best = tl.max(scores, 0)
    weight = tl.exp(scores - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weight, 0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(weights + batch * keys + slot, weight, mask=slot < keys)
    for first in range(0, 3 * width, DEPTH):
        column = first + tl.arange(0, DEPTH)
        there, of_z_or_r = column < 3 * width, column < 2 * width
        x = _load(projected, column[None, :], seen & there[None, :])
        of_r, place = of_z_or_r & (column >= width), batch * width + column - width
        s, gate = _load(state, place, of_r), _load(inputs, column, there)
        for part in tl.static_range(PARTS):
            gate += _load(both, part * both_part + hidden + column, of_z_or_r)
        gate += tl.sum(weight[:, None] * x, 0)
        gate = tl.where(of_z_or_r, tl.sigmoid(gate), gate)
        tl.store(gates + column, gate, mask=there)
        tl.store(reset + place, gate * s, mask=of_r)


@triton.jit(do_not_specialize=["part_step", "extra_row"])
def additive_gated_backward_kernel(
    parts, gates, state, dgates, before, extra, query, key, projected, vector, lengths, weights, dquery,
    dscores, length_step, keys, extra_row, hidden, width, part_step, dgates_row, key_batch, key_row,
    projected_batch, projected_row, UNIT: tl.constexpr, PARTS: tl.constexpr, LENGTHS: tl.constexpr,
    COLUMNS: tl.constexpr, HIDDEN: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of r, of the scores and of the query of one sequence; see the forward kernel.

    dquery = sum over keys of v g (1 - tanh^2), where g is the gradient of the score

    parts: reads PARTS tensors (B, width), whose sum is the gradient of r * s.
    gates: reads r. state: reads s.
    dgates: (B, 3 width). Reads the gradients of the arguments of z and s~ in the first and last third, and
        writes that of r to the second third.
    before: (B, width). Adds the part of the gradient of s that comes from r * s.
    extra: reads a part of the gradient of the weights, (B, S).
    weights: reads (B, S).
    dquery: writes (B, hidden). dscores: writes g, (B, S), 0 for padding.
    """
    hidden, width, dgates_row = hidden * UNIT, width * UNIT, dgates_row * UNIT
    key_batch, key_row, part_step = key_batch * UNIT, key_row * UNIT, part_step * UNIT
    projected_batch, projected_row = projected_batch * UNIT, projected_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (slot < end)[:, None]
    gates += batch * 3 * width
    dgates += batch * dgates_row
    dquery += batch * dgates_row
    query += batch * hidden
    key += batch * key_batch + slot[:, None] * key_row
    projected += batch * projected_batch + slot[:, None] * projected_row
    # All loads of a loop come before its stores, so that no load waits for a store.
    weight = _load(weights, batch * keys + slot, slot < keys)
    dweight = _load(extra, batch * extra_row + slot, slot < keys)
    channel = tl.arange(0, HIDDEN)
    q, v = _load(query, channel, channel < hidden), _load(vector, channel, channel < hidden)
    for first in range(0, 3 * width, DEPTH):
        column = first + tl.arange(0, DEPTH)
        there, of_r = column < 3 * width, (column >= width) & (column < 2 * width)
        place = batch * width + column - width
        x = _load(projected, column[None, :], seen & there[None, :])
        d = tl.zeros([DEPTH], tl.float32)
        for part in tl.static_range(PARTS):
            d += _load(parts, part * part_step + place, of_r)
        r, s, sofar = _load(gates, column, of_r), _load(state, place, of_r), _load(before, place, of_r)
        dgate = _load(dgates, column, there & (of_r == 0))
        dgate += d * s * r * (1.0 - r)  # r is 0 in the other columns
        tl.store(dgates + column, dgate, mask=of_r)
        tl.store(before + place, sofar + d * r, mask=of_r)
        dweight += tl.sum(x * dgate[None, :], 1)
    gradient = weight * (dweight - tl.sum(weight * dweight, 0))
    tl.store(dscores + batch * keys + slot, gradient, mask=slot < keys)
    for first in range(0, hidden, HIDDEN):
        channel = first + tl.arange(0, HIDDEN)
        inside = channel < hidden
        k = _load(key, channel[None, :], seen & inside[None, :])
        if first > 0:
            q, v = _load(query, channel, inside), _load(vector, channel, inside)
        t = tanh(q[None, :] + k, HALF, APPROXIMATE)
        slope = gradient[:, None] * (1.0 - t * t)
        tl.store(dquery + channel, tl.sum(slope, 0) * v, mask=inside)


def attend_gated(
    both: Tensor, key: Tensor, projected: Tensor, vector: Tensor, lengths: Tensor | None, inputs: Tensor,
    state: Tensor, gates: Tensor, reset: Tensor, query: Tensor, weights: Tensor,
) -> None:  # fmt: skip
    """Compute the weights (B, S), the gates z and r, and r * s of one step; see additive_gated_kernel.

    both: (P, B, A + 2 M). key: (B, S, A). projected: (B, S, 3 M). vector: (A,).
    lengths: number of keys of each sequence, (B,) or (1,), or None.
    inputs: (B, 3 M), with any row stride. state: (B, M), contiguous.
    gates, reset, query, weights: contiguous tensors (B, 3 M), (B, M), (B, A) and (B, S) that receive the
        results. weights is float32.
    """
    (batch, keys, hidden), width = key.shape, state.shape[1]
    strides = (*both.stride()[:2], *key.stride()[:2], *projected.stride()[:2], inputs.stride(0))
    additive_gated_kernel[(batch,)](
        both, key, projected, vector, weights if lengths is None else lengths, inputs, state, gates, reset,
        query, weights, length_step(lengths), keys, *units((hidden, width, *strides)), PARTS=len(both),
        LENGTHS=lengths is not None, **_options(key, width),
    )  # fmt: skip


def attend_gated_backward(
    parts: Tensor, gates: Tensor, state: Tensor, dgates: Tensor, before: Tensor, extra: Tensor, query: Tensor,
    key: Tensor, projected: Tensor, vector: Tensor, lengths: Tensor | None, weights: Tensor, dquery: Tensor,
    dscores: Tensor,
) -> None:  # fmt: skip
    """Compute the gradients of one step; see additive_gated_backward_kernel, and attend_gated().

    parts: (P, B, M), contiguous. before: (B, M), contiguous.
    dgates, dquery: (B, 3 M) and (B, A), with the same row stride.
    query: (B, A), contiguous. extra, dscores: (B, S), float32; dscores is contiguous.
    """
    (batch, keys, hidden), width = key.shape, state.shape[1]
    sizes = (hidden, width, parts.stride(0), dgates.stride(0), *key.stride()[:2], *projected.stride()[:2])
    additive_gated_backward_kernel[(batch,)](
        parts, gates, state, dgates, before, extra, query, key, projected, vector,
        weights if lengths is None else lengths, weights, dquery, dscores, length_step(lengths), keys,
        extra.stride(0), *units(sizes), PARTS=len(parts), LENGTHS=lengths is not None,
        **_options(key, width),
    )  # fmt: skip


def _options(key: Tensor, width: int) -> dict[str, Any]:
    """Return the launch parameters for these keys and this width of the state."""
    columns = columns_of(key.shape[1])
    return {
        "COLUMNS": columns,
        "HIDDEN": min(TILE // columns, triton.next_power_of_2(key.shape[2])),
        "DEPTH": min(2 * TILE // columns, triton.next_power_of_2(3 * width)),
        "HALF": key.dtype.itemsize == 2,
        "APPROXIMATE": not interpreting(),
        "num_warps": WARPS,
    }
