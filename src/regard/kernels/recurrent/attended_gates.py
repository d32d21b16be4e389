# mypy: disable-error-code="no-untyped-def"
"""Additive attention of one step of a recurrent decoder in training, together with the gates of its cell.

The context c = sum of weight_j h_j enters the gates only as C c = sum of weight_j (C h_j). So the products
C h_j ("projected values") are computed once for all steps, and a step needs no product with C. One kernel
computes softmax, C c, the gates z and r, and r * s. In the backward pass, one kernel computes the gradients
of r and of the weights, and one the gradients of scores and query. One kernel sums the gradients of keys and
of v over all steps.

fast/recurrent/attentive_steps_cuda.py contains the loop over the steps, and layers/gated_cell.py the cell.
Sizes and strides are in units of UNIT elements, see cells.units().

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.mask import end_of
from regard.kernels.recurrent.cells import units
from regard.kernels.tanh import LOG2E, exact_share
from regard.kernels.training.partial_sums import sum_over_rows

__all__ = ["attended_gates", "gates_backward", "memory_backward", "query_backward"]

BLOCK, WARPS, WARPS_BACK = 512, 2, 4
"""Number of columns of the gates that a program computes; its warps in the forward and backward pass."""

WIDTH, OWNED = 64, 32
"""Number of channels of a program of query_backward_kernel and memory_backward_kernel; it has one warp."""

KEYS = 32
"""Maximum number of keys that a program loads at once."""


@triton.jit
def _get(pointer, at, there):
    """Load the elements at pointer + at as float32; 0 where `there` is False."""
    return tl.load(pointer + at, mask=there, other=0.0).to(tl.float32)


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


@triton.jit(do_not_specialize=["inputs_row"])
def attended_gates_kernel(
    scores, projected, lengths, inputs, more, state, gates, reset, weights, norm, length_step, keys, rows,
    scores_row, weights_row, inputs_row, width, projected_batch, projected_row, more_row, state_row,
    gates_row, reset_row, UNIT: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute softmax, and BLOCK columns of the gates of a sequence.

    z, r = sigma(W e + U s + C c)     C c = weights . projected

    scores: reads (B, S). lengths: reads the number of keys of each sequence, (B,).
    projected: reads (B, S, 3 width).
    inputs: reads W e, (B, 3 width). inputs_row is in units of one element.
    more: reads U s for z and r, (B, 2 width). state: reads s, (B, width).
    gates: writes z, r and, for the candidate state, W e + C c, (B, 3 width).
    reset: writes r * s, (B, width).
    weights: writes (B, S), 0 for padding.
    norm: writes the maximum of the scores and 1 / sum of exp(score - maximum), (2, B).
    """
    width, projected_batch, projected_row = width * UNIT, projected_batch * UNIT, projected_row * UNIT
    more_row, state_row = more_row * UNIT, state_row * UNIT
    gates_row, reset_row = gates_row * UNIT, reset_row * UNIT
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, of_gates = column < 3 * width, column < 2 * width
    of_reset, place = of_gates & (column >= width), column - width
    end = end_of(lengths, length_step, row, keys, LENGTHS)
    s = _get(state, row * state_row + place, of_reset)
    gate = _get(inputs, row * inputs_row + column, there) + _get(more, row * more_row + column, of_gates)
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    attended = tl.zeros([BLOCK], tl.float32)
    for first in range(0, end, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        score = tl.load(scores + row * scores_row + key, mask=key < end, other=float("-inf"))
        at = row * projected_batch + key.to(tl.int64)[:, None] * projected_row + column[None, :]
        x = _get(projected, at, (key < end)[:, None] & there[None, :])
        highest = tl.maximum(best, tl.max(score, 0))
        shrink = tl.exp2((best - highest) * LOG2E)
        weight = tl.exp2((score - highest) * LOG2E)
        total = total * shrink + tl.sum(weight, 0)
        attended = attended * shrink + tl.sum(weight[:, None] * x, 0)
        best = highest
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    best = tl.where(total == 0.0, 0.0, best)
    gate += attended * inverse
    gate = tl.where(of_gates, tl.sigmoid(gate), gate)
    tl.store(gates + row * gates_row + column, gate, mask=there)
    tl.store(reset + row * reset_row + place, gate * s, mask=of_reset)
    if tl.program_id(1) == 0:
        one = tl.arange(0, 1)
        tl.store(norm + row + one, best)
        tl.store(norm + rows + row + one, inverse)
        for first in range(0, keys, COLUMNS):
            key = first + tl.arange(0, COLUMNS)
            score = tl.load(scores + row * scores_row + key, mask=key < end, other=float("-inf"))
            weight = tl.exp2((score - best) * LOG2E) * inverse
            tl.store(weights + row * weights_row + key, weight, mask=key < keys)


@triton.jit(do_not_specialize=["part_step"])
def gates_backward_kernel(
    parts, gates, state, dgates, before, projected, lengths, dweights, length_step, keys, rows, width,
    part_step, parts_row, gates_row, state_row, dgates_row, before_row, projected_batch, projected_row,
    UNIT: tl.constexpr, PARTS: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of r, and the gradients of the weights from BLOCK columns of the gates.

    parts: reads PARTS tensors (B, width), whose sum is the gradient of r * s.
    gates: reads r. state: reads s.
    dgates: (B, 3 width). Reads the gradients of the arguments of z and s~ in the first and last third, and
        writes that of r to the second third.
    before: (B, width). Adds the part of the gradient of s that comes from r * s.
    dweights: writes (blocks, B, S), to be summed over the blocks of columns; not for padding.
    """
    width, part_step, parts_row = width * UNIT, part_step * UNIT, parts_row * UNIT
    gates_row, state_row, dgates_row = gates_row * UNIT, state_row * UNIT, dgates_row * UNIT
    before_row, projected_batch = before_row * UNIT, projected_batch * UNIT
    projected_row = projected_row * UNIT
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < 3 * width
    of_reset, place = (column >= width) & (column < 2 * width), column - width
    d = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        d += _get(parts, part * part_step + row * parts_row + place, of_reset)
    r, s = _get(gates, row * gates_row + column, of_reset), _get(state, row * state_row + place, of_reset)
    so_far = _get(before, row * before_row + place, of_reset)
    dgate = _get(dgates, row * dgates_row + column, there & (of_reset == 0))
    dgate += d * s * r * (1.0 - r)  # r is 0 in the other columns
    tl.store(dgates + row * dgates_row + column, dgate, mask=of_reset)
    tl.store(before + row * before_row + place, so_far + d * r, mask=of_reset)
    end = end_of(lengths, length_step, row, keys, LENGTHS)
    dweights += (tl.program_id(1).to(tl.int64) * rows + row) * keys
    for first in range(0, end, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        at = row * projected_batch + key.to(tl.int64)[:, None] * projected_row + column[None, :]
        x = _get(projected, at, (key < end)[:, None] & there[None, :])
        tl.store(dweights + key, tl.sum(x * dgate[None, :], 1), mask=key < end)


@triton.jit
def _gradient_of_weights(dweights, extra, keys, rows, row, key, end, parts, PARTS: tl.constexpr):
    """Return the gradients of the weights of some keys: the sum of `parts` tensors (B, S), and `extra`."""
    part = tl.arange(0, PARTS)
    at = (part[:, None] * rows + row) * keys + key[None, :]
    inside = (part < parts)[:, None] & (key < end)[None, :]
    return tl.sum(_get(dweights, at, inside), 0) + _get(extra, key, key < end)


@triton.jit(do_not_specialize=["extra_row"])
def query_backward_kernel(
    dweights, extra, scores, norm, query, key_states, vector, lengths, dquery, dscores, length_step, keys,
    rows, parts, scores_row, extra_row, hidden, query_row, key_batch, key_row, dquery_row, UNIT: tl.constexpr,
    PARTS: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    HALF: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients g of the scores, and WIDTH channels of the gradient of the query.

    dquery = sum over keys of v g (1 - tanh^2)     g = weight (dweight - sum of weight dweight)

    dweights: reads the result of gates_backward_kernel, (parts, B, S).
    extra: reads a part of the gradient of the weights, (B, S).
    scores, norm: read the arguments and results of attended_gates_kernel.
    query, key_states, vector: read (B, hidden), (B, S, hidden) and v, (hidden,).
    dquery: writes (B, hidden). dscores: writes g, (B, S), 0 for padding.
    """
    hidden, query_row, key_batch = hidden * UNIT, query_row * UNIT, key_batch * UNIT
    key_row, dquery_row = key_row * UNIT, dquery_row * UNIT
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = channel < hidden
    end = end_of(lengths, length_step, row, keys, LENGTHS)
    q = _get(query, row * query_row + channel, there)
    v = _get(vector, channel, there)
    best, inverse = tl.load(norm + row), tl.load(norm + rows + row)
    extra += row * extra_row
    scores += row * scores_row
    # The sum of weight * dweight, and two sums over the keys from which dquery is computed with it.
    delta = tl.zeros([1], tl.float32)
    weighted, plain = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for first in range(0, end, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        at = row * key_batch + key.to(tl.int64)[:, None] * key_row + channel[None, :]
        k = _get(key_states, at, (key < end)[:, None] & there[None, :])
        score = tl.load(scores + key, mask=key < end, other=float("-inf"))
        dweight = _gradient_of_weights(dweights, extra, keys, rows, row, key, end, parts, PARTS)
        weight = tl.exp2((score - best) * LOG2E) * inverse
        delta += tl.sum(weight * dweight, 0)
        t = _tanh(q[None, :] + k, HALF, APPROXIMATE)
        slope = (1.0 - t * t) * weight[:, None]
        weighted += tl.sum(slope * dweight[:, None], 0)
        plain += tl.sum(slope, 0)
    tl.store(dquery + row * dquery_row + channel, (weighted - delta * plain) * v, mask=there)
    if tl.program_id(1) == 0:
        for first in range(0, keys, COLUMNS):
            key = first + tl.arange(0, COLUMNS)
            score = tl.load(scores + key, mask=key < end, other=float("-inf"))
            dweight = _gradient_of_weights(dweights, extra, keys, rows, row, key, end, parts, PARTS)
            weight = tl.exp2((score - best) * LOG2E) * inverse
            tl.store(dscores + row * keys + key, weight * (dweight - delta), mask=key < keys)


@triton.jit(do_not_specialize=["steps"])
def memory_backward_kernel(
    query, key_states, vector, dscores, dkey, dvector, steps, keys, rows, hidden, query_step, query_row,
    key_batch, key_row, UNIT: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of COLUMNS keys and of v over all steps, for a sequence and WIDTH channels.

    dkey = sum over steps of v g (1 - tanh^2)     dv = sum over steps and keys of g tanh

    query: reads (T, B, hidden). key_states: reads (B, S, hidden). vector: reads v, (hidden,).
    dscores: reads g, (T, B, S).
    dkey: writes (B, S, hidden).
    dvector: writes the part of dv of these keys, (B, key tiles, hidden).
    """
    hidden, query_step, query_row = hidden * UNIT, query_step * UNIT, query_row * UNIT
    key_batch, key_row = key_batch * UNIT, key_row * UNIT
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    key = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    there = channel < hidden
    inside = (key < keys)[:, None] & there[None, :]
    at = row * key_batch + key.to(tl.int64)[:, None] * key_row + channel[None, :]
    k = _get(key_states, at, inside)
    query += row * query_row
    dscores += row * keys
    slopes = tl.zeros([COLUMNS, WIDTH], tl.float32)
    products = tl.zeros([COLUMNS, WIDTH], tl.float32)
    for _ in range(steps):
        q, g = _get(query, channel, there), _get(dscores, key, key < keys)[:, None]
        # Keys of the padding can be NaN; their g is 0.
        t = tl.where(g == 0.0, 0.0, _tanh(q[None, :] + k, HALF, APPROXIMATE))
        products += g * t
        slopes += g * (1.0 - t * t)
        query += query_step
        dscores += rows * keys
    v = _get(vector, channel, there)
    into = (row * keys + key)[:, None] * hidden + channel[None, :]
    tl.store(dkey + into, slopes * v[None, :], mask=inside)
    part = row * tl.num_programs(2) + tl.program_id(2)
    tl.store(dvector + part * hidden + channel, tl.sum(products, 0), mask=there)


def attended_gates(
    scores: Tensor, projected: Tensor, lengths: Tensor | None, inputs: Tensor, more: Tensor, state: Tensor,
    gates: Tensor, reset: Tensor, weights: Tensor, norm: Tensor,
) -> None:  # fmt: skip
    """Compute attention weights and gates of one step; see attended_gates_kernel for the tensors.

    lengths: number of keys of each sequence, (B,) or (1,), or None.
    norm: contiguous; scores and weights have stride 1 along the keys.
    """
    (batch, keys, _), width = projected.shape, state.shape[1]
    strides = (*projected.stride()[:2], more.stride(0), state.stride(0), gates.stride(0), reset.stride(0))
    attended_gates_kernel[(batch, triton.cdiv(3 * width, BLOCK))](
        scores, projected, scores if lengths is None else lengths, inputs, more, state, gates, reset, weights,
        norm, _step(lengths), keys, batch, scores.stride(0), weights.stride(0), inputs.stride(0),
        *units((width, *strides)), LENGTHS=lengths is not None, COLUMNS=_columns(keys), BLOCK=BLOCK,
        num_warps=WARPS,
    )  # fmt: skip


def gates_backward(
    parts: Tensor, gates: Tensor, state: Tensor, dgates: Tensor, before: Tensor, projected: Tensor,
    lengths: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return parts of the gradient of the attention weights, (P, B, S) in float32, and write that of r.

    For the tensors, see gates_backward_kernel. The result is not written for padding.
    """
    (batch, keys, _), width = projected.shape, state.shape[1]
    blocks = triton.cdiv(3 * width, BLOCK)
    dweights = projected.new_empty(blocks, batch, keys, dtype=torch.float32)
    strides = (each.stride(0) for each in (gates, state, dgates, before))
    sizes = units((width, *parts.stride()[:2], *strides, *projected.stride()[:2]))
    gates_backward_kernel[(batch, blocks)](
        parts, gates, state, dgates, before, projected, dweights if lengths is None else lengths, dweights,
        _step(lengths), keys, batch, *sizes, PARTS=len(parts), LENGTHS=lengths is not None,
        COLUMNS=_columns(keys), BLOCK=BLOCK, num_warps=WARPS_BACK,
    )  # fmt: skip
    return dweights


def query_backward(
    dweights: Tensor, extra: Tensor, scores: Tensor, norm: Tensor, query: Tensor, key: Tensor, vector: Tensor,
    lengths: Tensor | None, dquery: Tensor, dscores: Tensor,
) -> None:  # fmt: skip
    """Compute the gradients of scores and query of one step; see query_backward_kernel for the tensors.

    dweights: the result of gates_backward(). dscores is contiguous.
    """
    batch, keys, hidden = key.shape
    sizes = units((hidden, query.stride(0), *key.stride()[:2], dquery.stride(0)))
    query_backward_kernel[(batch, triton.cdiv(hidden, WIDTH))](
        dweights, extra, scores, norm, query, key, vector, scores if lengths is None else lengths, dquery,
        dscores, _step(lengths), keys, batch, len(dweights), scores.stride(0), extra.stride(0), *sizes,
        PARTS=triton.next_power_of_2(len(dweights)), LENGTHS=lengths is not None, COLUMNS=_columns(keys),
        WIDTH=WIDTH, HALF=key.element_size() == 2, APPROXIMATE=not interpreting(), num_warps=1,
    )  # fmt: skip


def memory_backward(queries: Tensor, key: Tensor, vector: Tensor, dscores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys (B, S, A) and vector v (A,), the latter in float32, summed over all steps.

    queries: (T, B, A). dscores: (T, B, S), contiguous.
    """
    (steps, batch, hidden), keys, columns = queries.shape, key.shape[1], _columns(key.shape[1])
    dkey, tiles = key.new_empty(key.shape), triton.cdiv(keys, columns)
    dvector = key.new_empty(1, batch * tiles, hidden, dtype=torch.float32)
    sizes = units((hidden, *queries.stride()[:2], *key.stride()[:2]))
    memory_backward_kernel[(batch, triton.cdiv(hidden, OWNED), tiles)](
        queries, key, vector, dscores, dkey, dvector, steps, keys, batch, *sizes, COLUMNS=columns,
        WIDTH=OWNED, HALF=key.element_size() == 2, APPROXIMATE=not interpreting(), num_warps=1,
    )  # fmt: skip
    return dkey, sum_over_rows(dvector)[0]


def _columns(keys: int) -> int:
    """Return the number of keys that a program loads at once."""
    return min(max(triton.next_power_of_2(keys), 16), KEYS)


def _step(lengths: Tensor | None) -> int:
    """Return the stride of the lengths."""
    return 0 if lengths is None or len(lengths) == 1 else lengths.stride(0)
