# mypy: disable-error-code="no-untyped-def"
"""Backward pass, part 1: gradients of values and scores from the gradient of the output.

Formulas, with weights p, output gradient dO and values V:

    dp = dO . V     delta = sum over keys of p dp     dscore = p (dp - delta)     dV = p^T dO

With dropout, dp and the p of dV are multiplied by the dropout factors of the forward pass.

additive_weigh_kernel computes dp and partial sums of delta. additive_balance_kernel computes dscore.
additive_value_backward_kernel computes dV.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.dropout import dropout_factors
from regard.kernels.mask import end_of, tile_is_seen, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["additive_balance_kernel", "additive_value_backward_kernel", "additive_weigh_kernel"]


@triton.jit
def _weights(scores, norm, place, size, there, seen):
    """Recompute the weights of a tile, exp(score - maximum) / total; 0 where masked (`seen` is False).

    The formula exp(score - lse) would be less precise, because the lse has been rounded.

    norm: maximum and 1 / total of each row, (2, size), from the forward pass.
    place: index of each row.
    there: whether the row exists.
    """
    level = tl.load(norm + place, mask=there, other=0.0)
    inverse = tl.load(norm + size + place, mask=there, other=0.0)
    found = tl.exp2((tl.where(seen, scores, 0.0) - level[:, None]) * LOG2E) * inverse[:, None]
    return tl.where(seen, found, 0.0)


@triton.jit
def additive_weigh_kernel(
    scores, norm, value, doutput, dscores, deltas, seed, dropout,
    lengths, document_of_query, document_of_key, length_step, start, left, right,
    documents_query_step, documents_key_step, heads, groups, queries, keys, depth, first_row, row_count,
    value_batch, value_head, value_row, doutput_batch, doutput_head, doutput_row,
    scores_head, scores_row, dscores_head, dscores_row, key_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    EIGHTS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Compute dp = dO . V, the gradient of the weights p, and partial sums of delta = sum over keys of p dp.

    scores, norm, value, doutput: read, to recompute p and to compute dp. value is V, and doutput is dO.
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    dscores: writes dp, (B H, rows, keys), where rows and keys are rounded up to whole tiles.
    deltas: writes one partial sum per key tile, (B H, key tiles, rows).
    """
    if EIGHTS:
        depth, value_row, doutput_row = depth // 8 * 8, value_row // 8 * 8, doutput_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    both = tl.program_id(2).to(tl.int64)
    batch, head = both // heads, both % heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last, end = first_row + row_count, end_of(lengths, length_step, batch, keys, LENGTHS)
    made = tl.zeros([ROWS], tl.float32)
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        value_at = value + batch * value_batch + head // groups * value_head
        value_at += columns.to(tl.int64)[None, :] * value_row
        doutput_at = doutput + batch * doutput_batch + head * doutput_head
        doutput_at += rows.to(tl.int64)[:, None] * doutput_row
        dweights = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(0, depth, DEPTH):
            channels = first + tl.arange(0, DEPTH)
            of_row = (rows < last)[:, None] & (channels < depth)[None, :]
            of_output = tl.load(doutput_at + channels[None, :], mask=of_row, other=0.0)
            of_column = (channels < depth)[:, None] & (columns < end)[None, :]
            values = tl.load(value_at + channels[:, None], mask=of_column, other=0.0)
            dweights = product(of_output, values, dweights, PRECISION)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + at, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        dweights = tl.where(seen, dweights, 0.0)
        if DROPOUT:
            dweights *= dropout_factors(seed, dropout, both, rows, columns, queries, keys)
        at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
        tl.store(dscores + at, dweights)
        made = tl.sum(weights * dweights, 1)
    tl.store(deltas + (both * key_tiles + tl.program_id(1)) * (tl.num_programs(0) * ROWS) + local, made)


@triton.jit
def additive_balance_kernel(
    scores, norm, dscores, turned, deltas, dbias,
    lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, scale, first_row, row_count,
    scores_head, scores_row, dscores_head, dscores_row, turned_row, size, delta_parts,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRAIGHT: tl.constexpr, TURNED: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """Compute g = p (dp - delta) scale, the gradient of v . tanh(q + k).

    scores, norm: read, to recompute the weights p. dp is their gradient, delta the sum of p dp over the keys.
    deltas: reads the partial sums of delta, (B H, delta_parts, rows), and adds them.
    dscores: reads dp, (B H, rows, keys), and overwrites it with g if STRAIGHT is True.
    turned: if TURNED is True, writes g transposed, (B H, keys, rows).
    dbias: if BIAS is True, writes g, the gradient of the bias too, except in fully masked tiles.
    """
    both = tl.program_id(2).to(tl.int64)
    batch = both // heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last, end = first_row + row_count, end_of(lengths, length_step, batch, keys, LENGTHS)
    at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
    turned_at = both * dscores_head + columns.to(tl.int64)[:, None] * turned_row + local[None, :]
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        delta, rows_whole = tl.zeros([ROWS], tl.float32), tl.num_programs(0) * ROWS
        for part in range(delta_parts):
            delta += tl.load(deltas + (both * delta_parts + part) * rows_whole + local)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        of_scores = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + of_scores, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        found = tl.where(seen, weights * (tl.load(dscores + at) - delta[:, None]) * scale, 0.0)
        if BIAS:
            tl.store(dbias + at, found)
        if STRAIGHT:
            tl.store(dscores + at, found)
        if TURNED:
            tl.store(turned + turned_at, tl.trans(found))
    elif not TURNED:  # additive_decode_backward_kernel reads all tiles, so write 0 to a fully masked tile
        tl.store(dscores + at, tl.zeros([ROWS, COLUMNS], tl.float32))


@triton.jit
def additive_value_backward_kernel(
    scores, norm, doutput, dvalue, seed, dropout, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count,
    doutput_batch, doutput_head, doutput_row, scores_head, scores_row, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ADD: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute dV = p^T dO, the gradient of the values, for COLUMNS keys, DEPTH channels, `row_count` queries.

    scores, norm: read, to recompute the weights p.
    doutput: reads dO, (B, H, T, E).
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    dvalue: writes (B, K, S, E).
    ADD: add to dvalue instead of overwriting it.

    Launch grid: (key tiles, blocks of DEPTH channels, B K).
    """
    if EIGHTS:
        depth, doutput_row = depth // 8 * 8, doutput_row // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    column = tl.program_id(0) * COLUMNS
    columns = column + tl.arange(0, COLUMNS)
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    found = tl.zeros([COLUMNS, DEPTH], tl.float32)
    tiles = tl.cdiv(row_count, ROWS)
    for step in range(groups * tiles):
        head, tile = key_head_here * groups + step // tiles, step % tiles
        both = batch * heads + head
        row = first_row + tile * ROWS
        if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            local = tile * ROWS + tl.arange(0, ROWS)
            rows = first_row + local
            seen = visible(
                rows, columns, last, end, start, left, right,
                document_of_query + batch * documents_query_step,
                document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
            scored = tl.load(scores + at, mask=seen, other=0.0)
            weights = _weights(scored, norm, both * queries + rows, size, rows < last, seen)
            doutput_at = doutput + batch * doutput_batch + head * doutput_head
            of_output = tl.load(
                doutput_at + rows.to(tl.int64)[:, None] * doutput_row + channels[None, :],
                mask=(rows < last)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            if DROPOUT:
                weights *= dropout_factors(seed, dropout, both, rows, columns, queries, keys)
            turned = tl.trans(weights.to(of_output.dtype))
            found = product(turned, of_output, found, PRECISION)
    place = dvalue + (key_both * keys + columns)[:, None] * depth + channels[None, :]
    inside = (columns < keys)[:, None] & (channels < depth)[None, :]
    if ADD:
        found += tl.load(place, mask=inside, other=0.0)
    tl.store(place, found, mask=inside)
