# mypy: disable-error-code="no-untyped-def"
"""Additive attention of one step of a recurrent decoder in training: one kernel for each pass.

A program computes the whole step of one sequence: scores, softmax and context, or the gradient of the query.
After the last step of the backward pass, another kernel computes the gradients of keys and vector.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.aligned_sizes import units
from regard.kernels.kernel_mask import end_of
from regard.kernels.quick_launch import quick_launch
from regard.kernels.tanh import exact_share

__all__ = ["LONGEST", "attend", "attend_backward", "memory_backward"]

LONGEST = 128
"""Maximum number of keys: a program holds the weights of a sequence in registers."""

TILE, WARPS = 32768, 8
"""Number of elements of the keys that a program loads at once, and its maximum number of warps. Of the
values, it loads twice as many elements. On an NVIDIA H200, with 80 sequences of 30 keys (width 1,000, values
of size 2,000), the forward kernel takes 6.7 microseconds. It takes 8.8 with 16 warps, and 14 with half the
tile, because a program then waits for several loads, one after another. Pipelined loads took 16 to 20."""

MEMORY_TILE = 4096
"""Number of elements of the keys that a program of additive_memory_backward_kernel holds in registers."""


@triton.jit
def _tanh(x, HALF: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Return tanh(x).

    HALF: whether x was computed from numbers in half precision. Then one instruction computes tanh, with an
        error of up to 2^-11, which is less than a rounding step of bfloat16.
    """
    if HALF and APPROXIMATE:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 - 2.0 * exact_share(x, APPROXIMATE)


@quick_launch
@triton.jit
def additive_recurrent_kernel(
    query, key, value, vector, lengths, weights, context, length_step, keys, width, depth, query_row,
    key_batch, key_row, value_batch, value_row, UNIT: tl.constexpr, LENGTHS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute weights = softmax(v . tanh(q + k)) and context = weights . value of one sequence.

    query: reads (B, D). key, value: read (B, S, D) and (B, S, E). vector: reads v, (D,).
    lengths: reads the number of keys of each sequence, (B,).
    weights: writes (B, S), 0 for padding. context: writes (B, E).
    UNIT: width, depth and all strides are in units of this number of elements, see units().
    """
    width, depth, query_row = width * UNIT, depth * UNIT, query_row * UNIT
    key_batch, key_row = key_batch * UNIT, key_row * UNIT
    value_batch, value_row = value_batch * UNIT, value_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    key += batch * key_batch + column[:, None] * key_row
    value += batch * value_batch + column[:, None] * value_row
    scores = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, width, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < width
        q = tl.load(query + channel, mask=there, other=0.0).to(tl.float32)
        v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
        k = tl.load(key + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        scores += tl.sum(v[None, :] * _tanh(q[None, :] + k, HALF, APPROXIMATE), 1)
    scores = tl.where(column < end, scores, -float("inf"))
    best = tl.max(scores, 0)
    weight = tl.exp(scores - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weight, 0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(weights + batch * keys + column, weight, mask=column < keys)
    for first in range(0, depth, DEPTH):
        channel = first + tl.arange(0, DEPTH)
        there = channel < depth
        x = tl.load(value + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        tl.store(context + batch * depth + channel, tl.sum(weight[:, None] * x, 0), mask=there)


@quick_launch
@triton.jit(do_not_specialize=["part_step", "more_row"])
def additive_recurrent_backward_kernel(
    parts, more, dcontext, query, key, value, vector, lengths, weights, dquery, dscores, length_step, keys,
    width, depth, part_step, more_row, query_row, key_batch, key_row, value_batch, value_row, dquery_row,
    UNIT: tl.constexpr, PARTS: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the query of one sequence; arguments as in the forward kernel.

    dquery = sum over keys of v g (1 - tanh^2), where g is the gradient of the score

    parts, more: read PARTS tensors (B, E), and another (B, E). Their sum is the gradient of the context.
    dcontext: writes this sum, (B, E).
    weights: reads (B, S).
    dquery: writes (B, D). dscores: writes g, (B, S), 0 for padding.
    """
    width, depth, query_row, dquery_row = width * UNIT, depth * UNIT, query_row * UNIT, dquery_row * UNIT
    key_batch, key_row, more_row = key_batch * UNIT, key_row * UNIT, more_row * UNIT
    part_step = part_step * UNIT
    value_batch, value_row = value_batch * UNIT, value_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    parts += batch * depth
    more += batch * more_row
    dcontext += batch * depth
    dquery += batch * dquery_row
    key += batch * key_batch + column[:, None] * key_row
    value += batch * value_batch + column[:, None] * value_row
    dweight = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, depth, DEPTH):
        channel = first + tl.arange(0, DEPTH)
        there = channel < depth
        x = tl.load(value + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        d = tl.load(more + channel, mask=there, other=0.0).to(tl.float32)
        for part in tl.static_range(PARTS):
            d += tl.load(parts + part * part_step + channel, mask=there, other=0.0).to(tl.float32)
        tl.store(dcontext + channel, d, mask=there)
        dweight += tl.sum(x * d[None, :], 1)
    weight = tl.load(weights + batch * keys + column, mask=column < keys, other=0.0)
    gradient = weight * (dweight - tl.sum(weight * dweight, 0))
    tl.store(dscores + batch * keys + column, gradient, mask=column < keys)
    for first in range(0, width, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < width
        q = tl.load(query + channel, mask=there, other=0.0).to(tl.float32)
        v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
        k = tl.load(key + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        t = _tanh(q[None, :] + k, HALF, APPROXIMATE)
        slope = gradient[:, None] * (1.0 - t * t)
        tl.store(dquery + channel, tl.sum(slope, 0) * v, mask=there)


@quick_launch
@triton.jit
def additive_memory_backward_kernel(
    query, key, vector, dscores, dkey, parts, steps, keys, width, query_step, query_row, key_batch, key_row,
    dscores_step, UNIT: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys and of the vector v, for one sequence and WIDTH channels.

    dkey = sum over steps of v g (1 - tanh^2)     dv = sum over steps and keys of g tanh

    query: reads (T, B, D). key: reads (B, S, D). vector: reads v, (D,). dscores: reads g, (T, B, S).
    dkey: writes (B, S, D). parts: writes the part of dv of each sequence, (B, D).
    UNIT: width and all strides but dscores_step are in units of this number of elements, see units().
    """
    width, query_step, query_row = width * UNIT, query_step * UNIT, query_row * UNIT
    key_batch, key_row = key_batch * UNIT, key_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = channel < width
    inside = (column < keys)[:, None] & there[None, :]
    at = batch * key_batch + column[:, None] * key_row + channel[None, :]
    k = tl.load(key + at, mask=inside, other=0.0).to(tl.float32)
    slopes = tl.zeros([COLUMNS, WIDTH], tl.float32)
    products = tl.zeros([COLUMNS, WIDTH], tl.float32)
    query += batch * query_row
    dscores += batch * keys
    next_q = tl.load(query + channel, mask=there, other=0.0)
    next_g = tl.load(dscores + column, mask=column < keys, other=0.0)
    for step in range(steps):
        q, g = next_q.to(tl.float32), next_g[:, None]
        query += query_step
        dscores += dscores_step
        left = step + 1 < steps  # load the next step before this one is computed
        next_q = tl.load(query + channel, mask=there & left, other=0.0)
        next_g = tl.load(dscores + column, mask=(column < keys) & left, other=0.0)
        t = _tanh(q[None, :] + k, HALF, APPROXIMATE)
        # Keys of the padding can be NaN; their g is 0.
        slopes += tl.where(g == 0.0, 0.0, g * (1.0 - t * t))
        products += tl.where(g == 0.0, 0.0, g * t)
    v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
    into = (batch * keys + column)[:, None] * width + channel[None, :]
    tl.store(dkey + into, slopes * v[None, :], mask=inside)
    tl.store(parts + batch * width + channel, tl.sum(products, 0), mask=there)


def attend(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None, weights: Tensor,
    context: Tensor,
) -> None:  # fmt: skip
    """Compute the weights (B, S) and the context (B, E) of one step.

    query: (B, D), with any row stride. key, value: (B, S, D) and (B, S, E). vector: (D,).
    lengths: number of keys of each sequence, (B,) or (1,), or None.
    weights, context: contiguous tensors that receive the results. weights is float32.
    """
    batch, keys, width = key.shape
    sizes = (width, value.shape[2], query.stride(0), *key.stride()[:2], *value.stride()[:2])
    additive_recurrent_kernel[(batch,)](
        query, key, value, vector, weights if lengths is None else lengths, weights, context,
        _length_step(lengths), keys, *units(sizes), LENGTHS=lengths is not None,
        **_launch(key, value),
    )  # fmt: skip


def attend_backward(
    parts: Tensor, more: Tensor, dcontext: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor,
    lengths: Tensor | None, weights: Tensor, dquery: Tensor, dscores: Tensor,
) -> None:  # fmt: skip
    """Write the gradient of the query to dquery, (B, D) with any row stride; arguments as in attend().

    parts, more: (P, B, E), contiguous, and (B, E) with any row stride. The gradient of the context is
        parts.sum(0) + more.
    dcontext: receives this gradient, (B, E), contiguous.
    dscores: receives the gradient of the scores, (B, S), contiguous, float32.
    """
    batch, keys, width = key.shape
    rows = parts.stride(0), more.stride(0), query.stride(0)
    sizes = (width, value.shape[2], *rows, *key.stride()[:2], *value.stride()[:2], dquery.stride(0))
    additive_recurrent_backward_kernel[(batch,)](
        parts, more, dcontext, query, key, value, vector, weights if lengths is None else lengths, weights,
        dquery, dscores, _length_step(lengths), keys, *units(sizes), PARTS=len(parts),
        LENGTHS=lengths is not None, **_launch(key, value),
    )  # fmt: skip


def memory_backward(queries: Tensor, key: Tensor, vector: Tensor, dscores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys (B, S, D) and vector (D,), the latter in float32, summed over all steps.

    queries: (T, B, D). dscores: the gradients of the scores, (T, B, S), contiguous, float32.
    """
    (steps, batch, width), keys = queries.shape, key.shape[1]
    dkey = key.new_empty(key.shape)
    parts = vector.new_empty(batch, width, dtype=torch.float32)
    *sizes, unit = units((width, *queries.stride()[:2], *key.stride()[:2]))
    columns = _columns(keys)
    channels = max(MEMORY_TILE // columns, 16)
    additive_memory_backward_kernel[(batch, triton.cdiv(width, channels))](
        queries, key, vector, dscores, dkey, parts, steps, keys, *sizes, dscores.stride(0), unit,
        COLUMNS=columns, WIDTH=channels, HALF=key.dtype.itemsize == 2, APPROXIMATE=not interpreting(),
        num_warps=8,
    )  # fmt: skip
    return dkey, parts.sum(0)


def _length_step(lengths: Tensor | None) -> int:
    """Return the stride of the lengths along the batch: 0 for one length of all sequences."""
    return 0 if lengths is None or len(lengths) == 1 else lengths.stride(0)


def _columns(keys: int) -> int:
    """Return the number of keys of a tile."""
    return max(triton.next_power_of_2(keys), 16)


def _launch(key: Tensor, value: Tensor) -> dict[str, int | bool]:
    """Return the launch parameters for these keys and values."""
    columns = _columns(key.shape[1])
    width = min(TILE // columns, triton.next_power_of_2(key.shape[2]))
    depth = min(2 * TILE // columns, triton.next_power_of_2(value.shape[2]))
    return {
        "COLUMNS": columns,
        "WIDTH": width,
        "DEPTH": depth,
        "HALF": key.dtype.itemsize == 2,
        "APPROXIMATE": not interpreting(),
        "num_warps": min(max(columns * max(width, depth) // 2048, 4), WARPS),
    }
