# mypy: disable-error-code="no-untyped-def"
"""Inner-product attention of short sequences with dropout: one program for each head of each sequence.

A program holds the whole T x S matrix of its head in registers, so each pass reads and writes every tensor
once. The backward pass computes the weights again from the log-sum-exp.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.dropout import kept, limit, next_seed
from regard.kernels.inner.operators import up
from regard.kernels.launch import precision_of
from regard.kernels.matrix_product import product

__all__ = ["ShortAttention"]

NOT_SPECIALISED = ("heads", "queries", "keys", "start", "limit")
"""Arguments for whose values Triton compiles no variants of a kernel, because they differ between batches."""


LOG2E = tl.constexpr(1.4426950408889634)
"""log2(e): e^x = 2^(LOG2E x). tl.exp2() takes fewer instructions than tl.exp()."""


@triton.jit
def _visible(
    lengths, batch, rows, columns, queries, keys, start, LENGTHS: tl.constexpr, CAUSAL: tl.constexpr
):
    """Return which keys each query sees, (ROWS, COLUMNS), and the number of keys that any query sees."""
    last = keys
    if LENGTHS:
        last = tl.minimum(last, tl.load(lengths + batch).to(tl.int32))
    if CAUSAL:
        last = tl.minimum(last, start + queries)
    visible = (rows < queries)[:, None] & (columns < last)[None, :]
    if CAUSAL:
        visible &= columns[None, :] <= rows[:, None] + start
    return visible, last


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def short_forward_kernel(
    query, key, value, lengths, seed, output, lse, query_batch, query_head, query_row, key_batch, key_head,
    key_row, value_batch, value_head, value_row, output_batch, output_head, output_row, heads, queries, keys,
    width, depth, start, scale, limit, factor, LENGTHS: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output and the log-sum-exp of one head.

    query, key, value: read (B, H, T, D), (B, H, S, D) and (B, H, S, E).
    lengths: reads the number of visible keys of each sequence, (B,).
    output, lse: write (B, H, T, E) and (B, H, T).
    limit, factor: of dropout; see kept().
    """
    both = tl.program_id(0)
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    across, deep = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    visible, last = _visible(lengths, batch, row, column, queries, keys, start, LENGTHS, CAUSAL)
    there, seen = (row < queries)[:, None], (column < last)[:, None]
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    q = tl.load(query + row[:, None] * query_row + across, mask=there & (across < width), other=0.0)
    k = tl.load(key + column[:, None] * key_row + across, mask=seen & (across < width), other=0.0)
    v = tl.load(value + column[:, None] * value_row + deep, mask=seen & (deep < depth), other=0.0)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    scores = tl.where(visible, product(q, tl.trans(k), zero, PRECISION) * (scale * LOG2E), -float("inf"))
    best = tl.max(scores, 1)
    best = tl.where(best == -float("inf"), 0.0, best)
    weights = tl.exp2(scores - best[:, None])
    total = tl.sum(weights, 1)
    if DROPOUT:
        weights = tl.where(kept(seed, limit, both * queries + row, column), weights, 0.0)
    weights *= (factor / tl.where(total == 0.0, 1.0, total))[:, None]
    result = product(weights.to(v.dtype), v, tl.zeros((ROWS, DEPTH), tl.float32), PRECISION)
    into = output + batch * output_batch + head * output_head + row[:, None] * output_row + deep
    tl.store(into, result, mask=there & (deep < depth))
    found = tl.where(total == 0.0, -float("inf"), (best + tl.log2(total)) / LOG2E)
    tl.store(lse + both.to(tl.int64) * queries + row, found, mask=row < queries)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def short_backward_kernel(
    doutput, query, key, value, lengths, seed, lse, dquery, dkey, dvalue,
    doutput_batch, doutput_head, doutput_row, query_batch, query_head, query_row, key_batch, key_head,
    key_row, value_batch, value_head, value_row, dquery_batch, dquery_head, dquery_row, dkey_batch, dkey_head,
    dkey_row, dvalue_batch, dvalue_head, dvalue_row, heads,
    queries, keys, width, depth, start, scale, limit, factor, LENGTHS: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of query, key and value of one head; arguments as in the forward kernel.

    dquery, dkey, dvalue: write the gradients. Those of hidden keys and values are 0.
    """
    both = tl.program_id(0)
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    across, deep = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    visible, last = _visible(lengths, batch, row, column, queries, keys, start, LENGTHS, CAUSAL)
    there, seen = (row < queries)[:, None], (column < last)[:, None]
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    doutput += batch * doutput_batch + head * doutput_head
    q = tl.load(query + row[:, None] * query_row + across, mask=there & (across < width), other=0.0)
    k = tl.load(key + column[:, None] * key_row + across, mask=seen & (across < width), other=0.0)
    v = tl.load(value + column[:, None] * value_row + deep, mask=seen & (deep < depth), other=0.0)
    d = tl.load(doutput + row[:, None] * doutput_row + deep, mask=there & (deep < depth), other=0.0)
    norm = tl.load(lse + both.to(tl.int64) * queries + row, mask=row < queries, other=0.0)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    norm = (norm * LOG2E)[:, None]
    weights = tl.exp2(product(q, tl.trans(k), zero, PRECISION) * (scale * LOG2E) - norm)
    weights = tl.where(visible, weights, 0.0)
    dweights = product(d, tl.trans(v), zero, PRECISION)
    dropped = weights
    if DROPOUT:
        keep = kept(seed, limit, both * queries + row, column)
        dropped = tl.where(keep, weights, 0.0) * factor
        dweights = tl.where(keep, dweights, 0.0) * factor
    dv = product(tl.trans(dropped.to(d.dtype)), d, tl.zeros((COLUMNS, DEPTH), tl.float32), PRECISION)
    into = dvalue + batch * dvalue_batch + head * dvalue_head + column[:, None] * dvalue_row + deep
    inside = (column < keys)[:, None]
    tl.store(into, dv, mask=inside & (deep < depth))
    average = tl.sum(weights * dweights, 1)
    dscores = (weights * (dweights - average[:, None]) * scale).to(q.dtype)
    dq = product(dscores, k, tl.zeros((ROWS, WIDTH), tl.float32), PRECISION)
    into = dquery + batch * dquery_batch + head * dquery_head + row[:, None] * dquery_row + across
    tl.store(into, dq, mask=there & (across < width))
    dk = product(tl.trans(dscores), q, tl.zeros((COLUMNS, WIDTH), tl.float32), PRECISION)
    into = dkey + batch * dkey_batch + head * dkey_head + column[:, None] * dkey_row + across
    tl.store(into, dk, mask=inside & (across < width))


class ShortAttention(torch.autograd.Function):
    """Softmax attention of short sequences: output and log-sum-exp, which is not differentiable.

    query, key, value: (B, H, T, D), (B, H, S, D) and (B, H, S, E), each with a last stride of 1.
    lengths: number of visible keys of each sequence, (B,), or None.
    start: position of the first query, for a causal mask.
    causal: whether the query at position i sees only the keys 0 to i.
    scale: factor of the inner product.
    dropout: dropout probability of the weights.

    A query that sees no key gets output 0 and lse -inf. Keys and values that no query sees may be NaN.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, start: int, causal: bool,
        scale: float, dropout: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        batch, heads, queries, _ = query.shape
        sizes = (batch, queries, heads, value.shape[3])
        # The layout of the query: as a linear layer returns it, or head by head.
        heads_last = query.stride(1) < query.stride(2)
        output = query.new_empty(sizes) if heads_last else query.new_empty(batch, heads, queries, sizes[3])
        output = output.transpose(1, 2) if heads_last else output
        lse = query.new_empty(batch, heads, queries, dtype=torch.float32)
        seed = next_seed(query.device) if dropout else lse
        ctx.numbers = start, scale, limit(dropout), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
        ctx.options = {"LENGTHS": lengths is not None, "CAUSAL": causal, "DROPOUT": bool(dropout)}
        tensors = (query, key, value, lse if lengths is None else lengths, seed, output, lse)
        _launch(short_forward_kernel, tensors, (query, key, value, output), query, key, value, ctx)
        ctx.save_for_backward(query, key, value, lengths, seed, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutput: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, lengths, seed, lse = ctx.saved_tensors
        if doutput is None:
            return (None,) * 8
        doutput = doutput if doutput.stride(3) == 1 else doutput.contiguous()
        gradients = _adjacent(query, key, value)
        tensors = (doutput, query, key, value, lse if lengths is None else lengths, seed, lse, *gradients)
        strided = doutput, query, key, value, *gradients
        _launch(short_backward_kernel, tensors, strided, query, key, value, ctx)
        return *gradients, None, None, None, None, None


def _adjacent(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return empty gradients of query, key and value, adjacent in memory as the outputs of one linear layer.

    Then the backward pass of such a layer need not copy them, see joined() in fast/joint_linear.py.
    """
    tensors = query, key, value
    if key.shape != value.shape or any(each.stride(1) > each.stride(2) for each in tensors):
        return tuple(map(torch.empty_like, tensors))
    (batch, heads, length, width), count = key.shape, 3 if query.shape == key.shape else 2
    joint = key.new_empty(batch, length, count, heads, width).permute(2, 0, 3, 1, 4).unbind()
    return joint if count == 3 else (torch.empty_like(query), *joint)


def _launch(
    kernel, tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...], query: Tensor, key: Tensor,
    value: Tensor, ctx: Any,
) -> None:  # fmt: skip
    """Launch a kernel with one program for each head.

    strided: the tensors whose strides it needs.
    """
    batch, heads, queries, width = query.shape
    keys, depth = value.shape[2:]
    strides = (step for each in strided for step in each.stride()[:3])
    rows, columns = up(queries), up(keys)
    numbers = (*strides, heads, queries, keys, width, depth, *ctx.numbers)
    named = {
        **ctx.options, "ROWS": rows, "COLUMNS": columns, "WIDTH": up(width), "DEPTH": up(depth),
        "PRECISION": precision_of(query), "num_warps": 8 if rows * columns > 8192 else 4,
    }  # fmt: skip
    kernel[(batch * heads,)](*tensors, *numbers, **named)
