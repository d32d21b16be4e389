# mypy: disable-error-code="no-untyped-def"
"""Additive attention of one step of a recurrent decoder in training: one kernel for each pass.

A program computes the whole step of one sequence: scores, softmax and context, or the gradient of the query.
The gradients of keys, values and vector are computed after the last step, see layers/attentive_cell.py.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.kernel_mask import end_of
from regard.kernels.quick_launch import quick_launch
from regard.kernels.tanh import exact_share

__all__ = ["LONGEST", "attend", "attend_backward"]

LONGEST = 128
"""Maximum number of keys: a program holds the weights of a sequence in registers."""

TILE = 4096
"""Number of elements that a program loads at once."""


@quick_launch
@triton.jit
def additive_recurrent_kernel(
    query, key, value, vector, lengths, weights, context, length_step, keys, width, depth, query_row,
    key_batch, key_row, value_batch, value_row, LENGTHS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute weights = softmax(v . tanh(q + k)) and context = weights . value of one sequence.

    query: reads (B, D). key, value: read (B, S, D) and (B, S, E). vector: reads v, (D,).
    lengths: reads the number of keys of each sequence, (B,).
    weights, context: write (B, S), 0 behind the padding, and (B, E).
    """
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    key += batch * key_batch + column[:, None] * key_row
    value += batch * value_batch + column[:, None] * value_row
    shares = tl.zeros([COLUMNS, WIDTH], tl.float32)
    for first in range(0, width, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < width
        q = tl.load(query + channel, mask=there, other=0.0).to(tl.float32)
        v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
        k = tl.load(key + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        shares += v[None, :] * (1.0 - 2.0 * exact_share(q[None, :] + k, APPROXIMATE))
    scores = tl.where(column < end, tl.sum(shares, 1), -float("inf"))
    best = tl.max(scores, 0)
    weight = tl.exp(scores - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weight, 0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(weights + batch * keys + column, weight, mask=column < keys)
    for first in range(0, depth, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < depth
        x = tl.load(value + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        tl.store(context + batch * depth + channel, tl.sum(weight[:, None] * x, 0), mask=there)


@quick_launch
@triton.jit
def additive_recurrent_backward_kernel(
    dcontext, query, key, value, vector, lengths, weights, dquery, length_step, keys, width, depth,
    dcontext_row, query_row, key_batch, key_row, value_batch, value_row, dquery_row, LENGTHS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the query of one sequence; arguments as in the forward kernel.

    dquery = sum over keys of 4 v g (r - r^2), where g is the gradient of the score, and tanh = 1 - 2 r

    dcontext: reads the gradient of the context, (B, E).
    weights: reads (B, S).
    dquery: writes (B, D).
    """
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    seen = (column < end)[:, None]
    query += batch * query_row
    dcontext += batch * dcontext_row
    dquery += batch * dquery_row
    key += batch * key_batch + column[:, None] * key_row
    value += batch * value_batch + column[:, None] * value_row
    products = tl.zeros([COLUMNS, WIDTH], tl.float32)
    for first in range(0, depth, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < depth
        x = tl.load(value + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        products += x * tl.load(dcontext + channel, mask=there, other=0.0).to(tl.float32)[None, :]
    dweight = tl.sum(products, 1)
    weight = tl.load(weights + batch * keys + column, mask=column < keys, other=0.0)
    gradient = weight * (dweight - tl.sum(weight * dweight, 0))
    for first in range(0, width, WIDTH):
        channel = first + tl.arange(0, WIDTH)
        there = channel < width
        q = tl.load(query + channel, mask=there, other=0.0).to(tl.float32)
        v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
        k = tl.load(key + channel[None, :], mask=seen & there[None, :], other=0.0).to(tl.float32)
        share = exact_share(q[None, :] + k, APPROXIMATE)
        slope = gradient[:, None] * (4.0 * (share - share * share))
        tl.store(dquery + channel, tl.sum(slope, 0) * v, mask=there)


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
    additive_recurrent_kernel[(batch,)](
        query, key, value, vector, weights if lengths is None else lengths, weights, context,
        _step(lengths), keys, width, value.shape[2], query.stride(0),
        *key.stride()[:2], *value.stride()[:2], LENGTHS=lengths is not None, **_tile(keys),
    )  # fmt: skip


def attend_backward(
    dcontext: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
    weights: Tensor, dquery: Tensor,
) -> None:  # fmt: skip
    """Write the gradient of the query to dquery, (B, D) with any row stride; arguments as in attend().

    dcontext: the gradient of the context, (B, E).
    """
    batch, keys, width = key.shape
    additive_recurrent_backward_kernel[(batch,)](
        dcontext, query, key, value, vector, weights if lengths is None else lengths, weights, dquery,
        _step(lengths), keys, width, value.shape[2], dcontext.stride(0), query.stride(0),
        *key.stride()[:2], *value.stride()[:2], dquery.stride(0), LENGTHS=lengths is not None, **_tile(keys),
    )  # fmt: skip


def _step(lengths: Tensor | None) -> int:
    """Return the stride of the lengths along the batch: 0 for one length of all sequences."""
    return 0 if lengths is None or len(lengths) == 1 else lengths.stride(0)


def _tile(keys: int) -> dict[str, int | bool]:
    """Return the launch parameters for this number of keys."""
    columns = max(triton.next_power_of_2(keys), 16)
    return {
        "COLUMNS": columns,
        "WIDTH": TILE // columns,
        "APPROXIMATE": not interpreting(),
        "num_warps": 8,
    }
