# mypy: disable-error-code="no-untyped-def"
"""Additive attention with one query per sequence, as in decoding. Its speed is limited by memory bandwidth.

The channels are divided between the threads. additive_decode_kernel computes the scores directly from query
and key. It does not need the exponentials of additive_prepare_kernel, so it loads each key only once. Then
additive_read_kernel computes softmax and output.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.mask import end_of
from regard.kernels.tanh import exact_share

__all__ = ["additive_decode_backward_kernel", "additive_decode_kernel"]


@triton.jit
def additive_decode_kernel(
    query, key, vector, bias, scores, lengths, length_step, heads, groups, keys, width, scale,
    query_batch, query_head, key_batch, key_head, key_row, vector_head, scores_head,
    bias_batch, bias_head, bias_column,
    LENGTHS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute scale * v . tanh(q + k) for COLUMNS keys and the single query of a sequence.

    Reads query, (B, H, 1, D), key and vector; writes scores, (B H, 1, S). If BIAS is True, scale * bias is
    added, where bias is a tensor (B, H, 1, S). Launch grid: (key tiles, B H).
    """
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    query_base = query + batch * query_batch + head * query_head
    key_base = key + batch * key_batch + head // groups * key_head + columns.to(tl.int64)[:, None] * key_row
    shares = tl.zeros([COLUMNS, WIDTH], tl.float32)
    if tl.program_id(0) * COLUMNS < end:
        for first in range(0, width, WIDTH):
            channels = first + tl.arange(0, WIDTH)
            there = channels < width
            q = tl.load(query_base + channels, mask=there, other=0.0).to(tl.float32)
            v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
            inside = (columns < end)[:, None] & there[None, :]
            k = tl.load(key_base + channels[None, :], mask=inside, other=0.0).to(tl.float32)
            tanh = 1.0 - 2.0 * exact_share(q[None, :] + k, APPROXIMATE)
            shares += v[None, :] * tanh
        found = tl.sum(shares, 1)
        if BIAS:
            at = batch * bias_batch + head * bias_head + columns.to(tl.int64) * bias_column
            found += tl.load(bias + at, mask=columns < end, other=0.0).to(tl.float32)
        tl.store(scores + both * scores_head + columns, found * scale, mask=columns < end)


@triton.jit
def additive_decode_backward_kernel(
    query, key, vector, dscores, dquery, dkey, dvector, lengths, length_step,
    heads, keys, width, query_batch, query_head, key_batch, key_head, key_row, vector_head, dscores_head,
    part_keys, dquery_part, dquery_batch, dquery_head, dvector_part,
    LENGTHS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, OTHERS: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of query, key and vector, dq, dk and dv, for `part_keys` keys and WIDTH channels.

    dq = sum over keys of 4 v g (r - r^2),   dk = 4 v g (r - r^2),   dv = sum over keys of g (1 - 2 r)
    where r = 1 / (1 + e^2q e^2k) and g is the gradient of v . tanh(q + k)

    dscores: reads g, (B H, keys).
    dquery: writes partial sums, (parts, B, H, 1, D).
    dkey: writes (B, H, S, D). There must be as many key heads as query heads.
    dvector: writes partial sums, (parts, B H, D); the caller adds them over parts and batch.
    OTHERS: whether to compute dkey and dvector too.
    Launch grid: (blocks of WIDTH channels, B H, parts).
    """
    both, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, head = both // heads, both % heads
    channels = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = channels < width
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    at_query = query + batch * query_batch + head * query_head + channels
    q = tl.load(at_query, mask=there, other=0.0).to(tl.float32)
    v = tl.load(vector + head * vector_head + channels, mask=there, other=0.0).to(tl.float32)
    key_base = key + batch * key_batch + head * key_head
    of_query = tl.zeros([COLUMNS, WIDTH], tl.float32)
    of_vector = tl.zeros([COLUMNS, WIDTH], tl.float32)
    for first in range(part * part_keys, tl.minimum((part + 1) * part_keys, keys), COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = (columns < end)[:, None] & there[None, :]
        at = columns.to(tl.int64)[:, None] * key_row + channels[None, :]
        k = tl.load(key_base + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dscores + both * dscores_head + columns, mask=columns < end, other=0.0)
        share = exact_share(q[None, :] + k, APPROXIMATE)
        slope = gradient[:, None] * (4.0 * (share - share * share))
        of_query += slope
        if OTHERS:
            of_vector += gradient[:, None] * (1.0 - 2.0 * share)
            place = dkey + (both * keys + columns)[:, None] * width + channels[None, :]
            tl.store(place, slope * v[None, :], mask=(columns < keys)[:, None] & there[None, :])
    at = part * dquery_part + batch * dquery_batch + head * dquery_head + channels
    tl.store(dquery + at, tl.sum(of_query, 0) * v, mask=there)
    if OTHERS:
        tl.store(dvector + part * dvector_part + both * width + channels, tl.sum(of_vector, 0), mask=there)
