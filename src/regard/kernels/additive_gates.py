# mypy: disable-error-code="no-untyped-def"
"""Additive attention and the gates of one step of a recurrent decoder in training: one kernel for each pass.

The gates of the cell contain C c, where the context c is a weighted sum of values h: C c = sum_s w_s (C h_s).
The caller projects the values with C once for all steps. So a step needs no matrix product with C, and a
kernel computes the attention weights, and from them the gates z and r.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import additive_recurrent, interpreting
from regard.kernels.kernel_mask import end_of
from regard.kernels.quick_launch import quick_launch
from regard.kernels.tanh import exact_share

__all__ = ["attend_gates", "attend_gates_backward"]


@quick_launch
@triton.jit
def additive_gates_kernel(
    query, key, projected, vector, lengths, gates, state, weights, reset, length_step, keys, width, size,
    query_row, key_batch, key_row, projected_batch, projected_row, gates_row, state_row, reset_row,
    UNIT: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute weights = softmax(v . tanh(q + k)), and from them z, r and r * s, for one sequence.

    z, r = sigma(gates + weights . projected + U s)
    The last third of the gates, for the candidate state s~, becomes gates + weights . projected.

    query: reads q, then U s for z and r, (B, D + 2 M). key: reads (B, S, D). vector: reads v, (D,).
    projected: reads the values projected with C, (B, S, 3 M).
    lengths: reads the number of keys of each sequence, (B,).
    gates: reads the inputs of z, r and s~, and writes the results above, (B, 3 M). state: reads s, (B, M).
    weights: writes (B, S), 0 for padding. reset: writes r * s, (B, M).
    UNIT: width D, size M and all strides are in units of this number of elements, see units().
    """
    width, size, query_row, key_batch = width * UNIT, size * UNIT, query_row * UNIT, key_batch * UNIT
    key_row, projected_batch, projected_row = key_row * UNIT, projected_batch * UNIT, projected_row * UNIT
    gates_row, state_row, reset_row = gates_row * UNIT, state_row * UNIT, reset_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    key += batch * key_batch + column[:, None] * key_row
    projected += batch * projected_batch + column[:, None] * projected_row
    gates += batch * gates_row
    scores = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, width, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < width
        q = tl.load(query + channel, mask=there, other=0.0).to(tl.float32)
        v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
        k = tl.load(key + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        scores += tl.sum(v[None, :] * (1.0 - 2.0 * exact_share(q[None, :] + k, APPROXIMATE)), 1)
    scores = tl.where(column < end, scores, -float("inf"))
    best = tl.max(scores, 0)
    weight = tl.exp(scores - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weight, 0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(weights + batch * keys + column, weight, mask=column < keys)
    for third in tl.static_range(3):  # z, r, and the candidate state
        for first in range(0, size, SIZE):
            place = first + tl.arange(0, SIZE)
            inside = place < size
            at = third * size + place
            x = tl.load(projected + at[None, :], mask=seen & inside[None, :], other=0.0).to(tl.float32)
            gate = tl.sum(weight[:, None] * x, 0) + tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
            if third < 2:
                gate += tl.load(query + width + at, mask=inside, other=0.0).to(tl.float32)
                gate = tl.sigmoid(gate)
            tl.store(gates + at, gate, mask=inside)
            if third == 1:
                s = tl.load(state + batch * state_row + place, mask=inside, other=0.0).to(tl.float32)
                tl.store(reset + batch * reset_row + place, gate * s, mask=inside)


@quick_launch
@triton.jit
def additive_gates_backward_kernel(
    dgates, dweights, query, key, projected, vector, lengths, weights, dquery, dscores, length_step, keys,
    width, size, dgates_row, query_row, key_batch, key_row, projected_batch, projected_row, dquery_row,
    UNIT: tl.constexpr, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the scores and of the query of one sequence.

    dquery = sum over keys of 4 v g (p - p^2), where g is the gradient of the score, and tanh = 1 - 2 p

    dgates: reads the gradients of z, r and s~ before their activation functions, (B, 3 M).
    dweights: reads the part of the gradient of the weights that does not come from the gates, (B, S).
    query, key, projected, vector, lengths, weights: read, as in the forward kernel.
    dquery: writes (B, D). dscores: writes g, (B, S), 0 for padding.
    """
    width, size, dgates_row, query_row = width * UNIT, size * UNIT, dgates_row * UNIT, query_row * UNIT
    key_batch, key_row, dquery_row = key_batch * UNIT, key_row * UNIT, dquery_row * UNIT
    projected_batch, projected_row = projected_batch * UNIT, projected_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    dgates += batch * dgates_row
    dquery += batch * dquery_row
    key += batch * key_batch + column[:, None] * key_row
    projected += batch * projected_batch + column[:, None] * projected_row
    dweight = tl.load(dweights + batch * keys + column, mask=column < keys, other=0.0)
    for first in range(0, 3 * size, SIZE):
        place = first + tl.arange(0, SIZE)
        inside = place < 3 * size
        x = tl.load(projected + place[None, :], mask=seen & inside[None, :], other=0.0).to(tl.float32)
        d = tl.load(dgates + place, mask=inside, other=0.0).to(tl.float32)
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
        share = exact_share(q[None, :] + k, APPROXIMATE)
        slope = gradient[:, None] * (4.0 * (share - share * share))
        tl.store(dquery + channel, tl.sum(slope, 0) * v, mask=there)


def attend_gates(
    query: Tensor, key: Tensor, projected: Tensor, vector: Tensor, lengths: Tensor | None, gates: Tensor,
    state: Tensor, weights: Tensor, reset: Tensor,
) -> None:  # fmt: skip
    """Run additive_gates_kernel; its docstring explains the arguments. weights is contiguous and float32."""
    (batch, keys, width), size = key.shape, state.shape[1]
    rows = gates.stride(0), state.stride(0), reset.stride(0)
    sizes = (width, size, query.stride(0), *key.stride()[:2], *projected.stride()[:2], *rows)
    additive_gates_kernel[(batch,)](
        query, key, projected, vector, weights if lengths is None else lengths, gates, state, weights, reset,
        additive_recurrent.length_step(lengths), keys, *additive_recurrent.units(sizes),
        LENGTHS=lengths is not None, **_tile(key, size, 1),
    )  # fmt: skip


def attend_gates_backward(
    dgates: Tensor, dweights: Tensor, query: Tensor, key: Tensor, projected: Tensor, vector: Tensor,
    lengths: Tensor | None, weights: Tensor, dquery: Tensor, dscores: Tensor,
) -> None:  # fmt: skip
    """Run additive_gates_backward_kernel; its docstring explains the arguments.

    dweights, weights and dscores are contiguous and float32.
    """
    (batch, keys, width), size = key.shape, projected.shape[2] // 3
    sizes = (width, size, dgates.stride(0), query.stride(0), *key.stride()[:2], *projected.stride()[:2])
    additive_gates_backward_kernel[(batch,)](
        dgates, dweights, query, key, projected, vector, weights if lengths is None else lengths, weights,
        dquery, dscores, additive_recurrent.length_step(lengths), keys,
        *additive_recurrent.units((*sizes, dquery.stride(0))),
        LENGTHS=lengths is not None, **_tile(key, 3 * size, 2),
    )  # fmt: skip


def _tile(key: Tensor, size: int, factor: int) -> dict[str, int | bool]:
    """Return the launch parameters. A program loads TILE elements of the keys at once.

    size: width of the rows of projected values that are loaded together.
    factor: a program loads this many times TILE elements of them at once.
    """
    columns = additive_recurrent.columns_of(key.shape[1])
    most = additive_recurrent.TILE // columns
    width, size = (triton.next_power_of_2(each) for each in (key.shape[2], size))
    width, size = min(most, width), min(factor * most, size)
    return {
        "COLUMNS": columns,
        "WIDTH": width,
        "SIZE": size,
        "APPROXIMATE": not interpreting(),
        "num_warps": min(max(columns * max(2 * width, size) // 2048, 4), 32),
    }
