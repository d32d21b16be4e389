# mypy: disable-error-code="no-untyped-def"
"""Inner-product attention with masks: backward pass.

With w = exp(score - lse), the gradients are

    dvalue_j = sum_i w_ij doutput_i
    g_ij = w_ij (doutput_i . value_j - delta_i),   delta_i = doutput_i . output_i
    dquery_i = scale sum_j g_ij key_j,   dkey_j = scale sum_i g_ij query_i

inner_query_backward_kernel computes dquery and delta; inner_key_backward_kernel then computes dkey and
dvalue. Both compute the weights again from the lse. No atomics are used, so results are reproducible bit by
bit. Where the mask hides a pair, w and g are exactly 0, even if key or value is NaN.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.inner.forward import NOT_SPECIALISED, load_rows, used_keys
from regard.kernels.mask import end_of, key_tiles, query_tiles, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_key_backward_kernel", "inner_query_backward_kernel"]


@triton.jit
def _level(lse, rows, queries):
    """Load the lse of queries in units of log 2, with inf for rows beyond the last query."""
    return tl.load(lse + rows, mask=rows < queries, other=float("inf")) * LOG2E


@triton.jit
def _add_key_tiles(
    dquery_RD, first, last, row, query_RD, doutput_RE, level_R, delta_R, key, value, start, left, right,
    scale, queries, end, width, depth, key_row, value_row,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dquery_RD plus the sum of g_ij key_j over the tiles of keys `first` to last - 1.

    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.
    """
    rows = row + tl.arange(0, ROWS)
    for tile in range(first, last):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        used_C = columns < end
        if MASKED:
            used_C = used_keys(columns, row, queries, end, start, left, right, LEFT, RIGHT, ROWS)
        key_CD = load_rows(key, columns, key_row, used_C, width, WIDTH)
        value_CE = load_rows(value, columns, value_row, used_C, depth, DEPTH)
        zero_RC = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores_RC = product(query_RD, tl.trans(key_CD), zero_RC, PRECISION) * (scale * LOG2E)
        weights_RC = tl.exp2(scores_RC - level_R[:, None])
        dweights_RC = product(doutput_RE, tl.trans(value_CE), zero_RC, PRECISION)
        dscores_RC = weights_RC * (dweights_RC - delta_R[:, None])
        if MASKED:
            seen_RC = visible(rows, columns, queries, end, start, left, right, key, key, LEFT, RIGHT, False)
            dscores_RC = tl.where(seen_RC, dscores_RC, 0.0)
        dquery_RD = product(dscores_RC.to(key_CD.dtype), key_CD, dquery_RD, PRECISION)
    return dquery_RD


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def inner_query_backward_kernel(
    query, key, value, output, lse, lengths, doutput, dquery, delta,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    output_batch, output_head, output_row, doutput_batch, doutput_head, doutput_row, dquery_batch,
    dquery_head, dquery_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, EIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dquery and delta of one tile of queries.

    Launch grid: (query tiles * B H,). dquery, delta: (B, H, T, D) and (B, H, T), receive the results.
    """
    if EIGHTS:
        width, depth = width // 8 * 8, depth // 8 * 8
        query_batch, query_head, query_row = query_batch // 8 * 8, query_head // 8 * 8, query_row // 8 * 8
        key_batch, key_head, key_row = key_batch // 8 * 8, key_head // 8 * 8, key_row // 8 * 8
        value_batch, value_head, value_row = value_batch // 8 * 8, value_head // 8 * 8, value_row // 8 * 8
    tiles = tl.cdiv(queries, ROWS)
    both = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tiles - 1 - tl.program_id(0) % tiles) * ROWS
    batch, head = both // heads, both % heads
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head // groups * key_head
    value += batch * value_batch + head // groups * value_head
    end = tl.maximum(end_of(lengths, length_step, batch, keys, LENGTHS), 0)
    rows = row + tl.arange(0, ROWS)
    inside_R = rows < queries
    query_RD = load_rows(query, rows, query_row, inside_R, width, WIDTH)
    output_at = output + batch * output_batch + head * output_head
    doutput_at = doutput + batch * doutput_batch + head * doutput_head
    output_RE = load_rows(output_at, rows, output_row, inside_R, depth, DEPTH)
    doutput_RE = load_rows(doutput_at, rows, doutput_row, inside_R, depth, DEPTH)
    delta_R = tl.sum(output_RE.to(tl.float32) * doutput_RE.to(tl.float32), 1)
    tl.store(delta + both * queries + rows, delta_R, mask=inside_R)
    level_R = _level(lse + both * queries, rows, queries)
    dquery_RD = tl.zeros([ROWS, WIDTH], tl.float32)
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, False, ROWS, COLUMNS
    )
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        first_tile, last_tile = first, full_first
        if part == 1:
            first_tile, last_tile = full_first, full_last
        if part == 2:
            first_tile, last_tile = full_last, last
        if part > 0 or LEFT:
            dquery_RD = _add_key_tiles(
                dquery_RD, first_tile, last_tile, row, query_RD, doutput_RE, level_R, delta_R, key, value,
                start, left, right, scale, queries, end, width, depth, key_row, value_row, LEFT, RIGHT,
                part != 1, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
            )  # fmt: skip
    channels = tl.arange(0, WIDTH)
    at = batch * dquery_batch + head * dquery_head + rows.to(tl.int64)[:, None] * dquery_row
    inside = inside_R[:, None] & (channels < width)[None, :]
    tl.store(dquery + at + channels[None, :], (dquery_RD * scale).to(dquery.dtype.element_ty), mask=inside)


@triton.jit
def _add_query_tiles(
    dkey_CD, dvalue_CE, first, last, columns, key_CD, value_CE, query, doutput, lse, delta, start, left,
    right, scale, queries, end, width, depth, query_row, doutput_row,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dkey_CD and dvalue_CE plus the sums over the tiles of queries `first` to last - 1.

    Tiles of scores are transposed, (COLUMNS, ROWS).
    """
    zero_CR = tl.zeros([COLUMNS, ROWS], tl.float32)
    for tile in range(first, last):
        rows = tile * ROWS + tl.arange(0, ROWS)
        query_RD = load_rows(query, rows, query_row, rows < queries, width, WIDTH)
        doutput_RE = load_rows(doutput, rows, doutput_row, rows < queries, depth, DEPTH)
        level_R = _level(lse, rows, queries)
        delta_R = tl.load(delta + rows, mask=rows < queries, other=0.0)
        scores_CR = product(key_CD, tl.trans(query_RD), zero_CR, PRECISION) * (scale * LOG2E)
        # The tile is transposed: keys stand in the place of queries, and left and right are exchanged.
        seen_CR = visible(columns, rows, end, queries, -start, right, left, query, query, RIGHT, LEFT, False)
        weights_CR = tl.where(seen_CR, tl.exp2(scores_CR - level_R[None, :]), 0.0)
        dvalue_CE = product(weights_CR.to(doutput_RE.dtype), doutput_RE, dvalue_CE, PRECISION)
        dweights_CR = product(value_CE, tl.trans(doutput_RE), zero_CR, PRECISION)
        dscores_CR = tl.where(seen_CR, weights_CR * (dweights_CR - delta_R[None, :]), 0.0)
        dkey_CD = product(dscores_CR.to(query_RD.dtype), query_RD, dkey_CD, PRECISION)
    return dkey_CD, dvalue_CE


@triton.jit
def _store_rows(tensor, gradient, rows, count, row_step, width, WIDTH: tl.constexpr):
    """Write the rows of a gradient, (rows, WIDTH), to a tensor (count, width)."""
    channels = tl.arange(0, WIDTH)
    at = tensor + rows.to(tl.int64)[:, None] * row_step + channels[None, :]
    inside = (rows < count)[:, None] & (channels < width)[None, :]
    tl.store(at, gradient.to(tensor.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def inner_key_backward_kernel(
    query, key, value, lse, lengths, doutput, delta, dkey, dvalue,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    doutput_batch, doutput_head, doutput_row, dkey_batch, dkey_head, dkey_row, dvalue_batch, dvalue_head,
    dvalue_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, EIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dkey and dvalue of one tile of keys.

    Launch grid: (key tiles * B K,), for K key heads. A program adds the query heads that share its key head.
    Tiles of scores are transposed, (COLUMNS, ROWS).
    """
    if EIGHTS:
        width, depth = width // 8 * 8, depth // 8 * 8
        query_batch, query_head, query_row = query_batch // 8 * 8, query_head // 8 * 8, query_row // 8 * 8
        key_batch, key_head, key_row = key_batch // 8 * 8, key_head // 8 * 8, key_row // 8 * 8
        value_batch, value_head, value_row = value_batch // 8 * 8, value_head // 8 * 8, value_row // 8 * 8
    tiles = tl.cdiv(keys, COLUMNS)
    both = (tl.program_id(0) // tiles).to(tl.int64)
    column = tl.program_id(0) % tiles * COLUMNS
    batch, own_head = both // (heads // groups), both % (heads // groups)
    end = tl.maximum(end_of(lengths, length_step, batch, keys, LENGTHS), 0)
    columns = column + tl.arange(0, COLUMNS)
    key += batch * key_batch + own_head * key_head
    value += batch * value_batch + own_head * value_head
    key_CD = load_rows(key, columns, key_row, columns < end, width, WIDTH)
    value_CE = load_rows(value, columns, value_row, columns < end, depth, DEPTH)
    dkey_CD = tl.zeros([COLUMNS, WIDTH], tl.float32)
    dvalue_CE = tl.zeros([COLUMNS, DEPTH], tl.float32)
    first, last = query_tiles(column, queries, end, start, left, right, LEFT, RIGHT, ROWS, COLUMNS)
    for head in range(own_head * groups, own_head * groups + groups):
        at = (batch * heads + head) * queries
        dkey_CD, dvalue_CE = _add_query_tiles(
            dkey_CD, dvalue_CE, first, last, columns, key_CD, value_CE,
            query + batch * query_batch + head * query_head,
            doutput + batch * doutput_batch + head * doutput_head, lse + at, delta + at, start, left, right,
            scale, queries, end, width, depth, query_row, doutput_row, LEFT, RIGHT, ROWS, COLUMNS, WIDTH,
            DEPTH, PRECISION,
        )  # fmt: skip
    dkey, dvalue = dkey + batch * dkey_batch, dvalue + batch * dvalue_batch
    _store_rows(dkey + own_head * dkey_head, dkey_CD * scale, columns, keys, dkey_row, width, WIDTH)
    _store_rows(dvalue + own_head * dvalue_head, dvalue_CE, columns, keys, dvalue_row, depth, DEPTH)
