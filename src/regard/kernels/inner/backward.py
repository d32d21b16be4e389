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

from regard.kernels.inner.forward import NOT_SPECIALISED
from regard.kernels.inner.masks import (
    listed_tiles,
    load_rows,
    only_seen,
    seen_pairs,
    tiles_of_keys,
    tiles_of_queries,
    used_bits,
    used_keys,
)
from regard.kernels.mask import end_of
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_key_backward_kernel", "inner_query_backward_kernel"]


@triton.jit
def _level(lse, rows, queries):
    """Load the lse of queries in units of log 2, with inf for rows beyond the last query."""
    return tl.load(lse + rows, mask=rows < queries, other=float("inf")) * LOG2E


@triton.jit
def _add_key_tiles(
    dquery_RD, first, last, indices, used, row, query_RD, doutput_RE, level_R, delta_R, key, value, table,
    document_of_query, document_of_key, start, left, right, scale, queries, end, width, depth, key_row,
    value_row, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    LISTED: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, REDUCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dquery_RD plus the sum of g_ij key_j over the tiles of keys `first` to last - 1.

    indices, used: if LISTED, see _read_tiles() in forward.py.
    """
    rows = row + tl.arange(0, ROWS)
    for index in range(first, last):
        tile = tl.load(indices + index) if LISTED else index
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        used_C = columns < end
        if MASKED and LISTED:
            used_C = used_bits(used, columns, tile * COLUMNS, COLUMNS)
        elif MASKED:
            seen_RC = seen_pairs(
                rows, columns, queries, end, start, left, right, document_of_query, document_of_key, table,
                table_row, table_column, LEFT, RIGHT, DOCUMENTS, TABLE, WHOLE, False,
            )  # fmt: skip
            used_C = used_keys(
                seen_RC, columns, row, tl.minimum(row + ROWS, queries) - 1, end, start, left, right, LEFT,
                RIGHT, REDUCE,
            )  # fmt: skip
        key_CD = load_rows(key, columns, key_row, used_C, width, WIDTH)
        value_CE = load_rows(value, columns, value_row, used_C, depth, DEPTH)
        zero_RC = tl.zeros([ROWS, COLUMNS], tl.float32)
        scores_RC = product(query_RD, tl.trans(key_CD), zero_RC, PRECISION) * (scale * LOG2E)
        weights_RC = tl.exp2(scores_RC - level_R[:, None])
        dweights_RC = product(doutput_RE, tl.trans(value_CE), zero_RC, PRECISION)
        dscores_RC = weights_RC * (dweights_RC - delta_R[:, None])
        if MASKED and LISTED:
            dscores_RC = only_seen(
                dscores_RC, table, table_row, rows, tile * COLUMNS, queries, COLUMNS, False, False, PRECISION
            )
        elif MASKED:
            dscores_RC = tl.where(seen_RC, dscores_RC, 0.0)
        dquery_RD = product(dscores_RC.to(key_CD.dtype), key_CD, dquery_RD, PRECISION)
    return dquery_RD


@triton.jit
def _add_keys(
    row, batch, head, query_RD, doutput_RE, level_R, delta_R, key, value, table, document_of_query,
    document_of_key, lists, start, left, right, scale, queries, end, width, depth, key_row, value_row,
    table_row, table_column, lists_batch, lists_head, others, records,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    LISTED: tl.constexpr, RANGED: tl.constexpr, WHOLE: tl.constexpr, REDUCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the sum of g_ij key_j of one tile of queries over all keys that it sees, (ROWS, WIDTH).

    key, value, table: of the current sequence and head. The arguments have the same meaning as in
    inner_query_backward_kernel.
    """
    dquery_RD = tl.zeros([ROWS, WIDTH], tl.float32)
    ANY: tl.constexpr = TABLE or (DOCUMENTS and not RANGED)
    COMPARED: tl.constexpr = DOCUMENTS and not RANGED  # whether all tiles compare document ids
    shift, start, end, first, full_first, full_last, last, compared_first, compared_last = tiles_of_keys(
        lists, lists_batch, batch, row, queries, end, start, left, right, LEFT, RIGHT, ANY, RANGED, ROWS,
        COLUMNS,
    )  # fmt: skip
    if RANGED:
        key += tl.cast(shift, tl.int64) * key_row
        value += tl.cast(shift, tl.int64) * value_row
    indices = lists
    if LISTED:
        at = lists + records + batch * lists_batch + head * lists_head
        at += row // ROWS * (2 + others + table_row)
        indices, full_last, first = listed_tiles(at, others)
        full_first, last = 0, others
    if RANGED:
        dquery_RD = _add_key_tiles(
            dquery_RD, compared_first, compared_last, indices, indices, row, query_RD, doutput_RE, level_R,
            delta_R, key, value, table, document_of_query, document_of_key, start, left, right, scale,
            queries, end, width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, True,
            TABLE, LISTED, WHOLE, True, True, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    if LEFT and not ANY:
        dquery_RD = _add_key_tiles(
            dquery_RD, first, full_first, indices, indices + others, row, query_RD, doutput_RE, level_R,
            delta_R, key, value, table, document_of_query, document_of_key, start, left, right, scale,
            queries, end, width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, COMPARED,
            TABLE, LISTED, WHOLE, True, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    if LISTED or not ANY:
        dquery_RD = _add_key_tiles(
            dquery_RD, full_first, full_last, indices, indices + others, row, query_RD, doutput_RE, level_R,
            delta_R, key, value, table, document_of_query, document_of_key, start, left, right, scale,
            queries, end, width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, COMPARED,
            TABLE, LISTED, WHOLE, False, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    dquery_RD = _add_key_tiles(
        dquery_RD, first if LISTED else full_last, last, indices, indices + others, row, query_RD,
        doutput_RE, level_R, delta_R, key, value, table, document_of_query, document_of_key, start, left,
        right, scale, queries, end, width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT,
        COMPARED, TABLE, LISTED, WHOLE, True, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
    )  # fmt: skip
    return dquery_RD


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def inner_query_backward_kernel(
    query, key, value, output, lse, lengths, table, document_of_query, document_of_key, lists, doutput,
    dquery, delta,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    output_batch, output_head, output_row, table_batch, table_head, table_row, table_column,
    documents_query_step, documents_key_step, lists_batch, lists_head, others, records, doutput_batch,
    doutput_head, doutput_row, dquery_batch, dquery_head, dquery_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    TABLE: tl.constexpr, LISTED: tl.constexpr, RANGED: tl.constexpr, WHOLE: tl.constexpr,
    REDUCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, EIGHTS: tl.constexpr, PRECISION: tl.constexpr,
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
    table += batch * table_batch + head * table_head
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
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
    dquery_RD = _add_keys(
        row, batch, head, query_RD, doutput_RE, level_R, delta_R, key, value, table, document_of_query,
        document_of_key, lists, start, left, right, scale, queries, end, width, depth, key_row, value_row,
        table_row, table_column, lists_batch, lists_head, others, records, LEFT, RIGHT, DOCUMENTS, TABLE,
        LISTED, RANGED, WHOLE, REDUCE, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
    )  # fmt: skip
    channels = tl.arange(0, WIDTH)
    at = batch * dquery_batch + head * dquery_head + rows.to(tl.int64)[:, None] * dquery_row
    inside = inside_R[:, None] & (channels < width)[None, :]
    tl.store(dquery + at + channels[None, :], (dquery_RD * scale).to(dquery.dtype.element_ty), mask=inside)


@triton.jit
def _add_query_tiles(
    dkey_CD, dvalue_CE, first, last, indices, column, columns, key_CD, value_CE, query, doutput, lse, delta,
    table, document_of_query, document_of_key, start, left, right, scale, queries, end, width, depth,
    query_row, doutput_row, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    LISTED: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dkey_CD and dvalue_CE plus the sums over the tiles of queries `first` to last - 1.

    Tiles of scores are transposed, (COLUMNS, ROWS).
    indices: if LISTED, the tiles of queries are indices[first], ..., indices[last - 1] instead.
    """
    zero_CR = tl.zeros([COLUMNS, ROWS], tl.float32)
    for index in range(first, last):
        tile = tl.load(indices + index) if LISTED else index
        rows = tile * ROWS + tl.arange(0, ROWS)
        query_RD = load_rows(query, rows, query_row, rows < queries, width, WIDTH)
        doutput_RE = load_rows(doutput, rows, doutput_row, rows < queries, depth, DEPTH)
        level_R = _level(lse, rows, queries)
        delta_R = tl.load(delta + rows, mask=rows < queries, other=0.0)
        scores_CR = product(key_CD, tl.trans(query_RD), zero_CR, PRECISION) * (scale * LOG2E)
        weights_CR = tl.exp2(scores_CR - level_R[None, :])
        if MASKED and LISTED:
            weights_CR = only_seen(
                weights_CR, table, table_row, rows, column, queries, COLUMNS, True, False, PRECISION
            )
        elif MASKED:
            # The tile is transposed: keys stand in the place of queries, and left and right are exchanged.
            seen_CR = seen_pairs(
                columns, rows, end, queries, -start, right, left, document_of_key + start,
                document_of_query + start, table, table_column, table_row, RIGHT, LEFT, DOCUMENTS, TABLE,
                WHOLE, True,
            )  # fmt: skip
            weights_CR = tl.where(seen_CR, weights_CR, 0.0)
        dvalue_CE = product(weights_CR.to(doutput_RE.dtype), doutput_RE, dvalue_CE, PRECISION)
        dweights_CR = product(value_CE, tl.trans(doutput_RE), zero_CR, PRECISION)
        dscores_CR = weights_CR * (dweights_CR - delta_R[None, :])
        if MASKED and LISTED:
            dscores_CR = only_seen(
                dscores_CR, table, table_row, rows, column, queries, COLUMNS, True, False, PRECISION
            )
        elif MASKED:
            dscores_CR = tl.where(seen_CR, dscores_CR, 0.0)
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
    query, key, value, lse, lengths, table, document_of_query, document_of_key, lists, doutput, delta, dkey,
    dvalue,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    table_batch, table_head, table_row, table_column, documents_query_step, documents_key_step,
    lists_batch, lists_head, others, records, doutput_batch, doutput_head, doutput_row, dkey_batch,
    dkey_head, dkey_row, dvalue_batch, dvalue_head, dvalue_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    TABLE: tl.constexpr, LISTED: tl.constexpr, RANGED: tl.constexpr, WHOLE: tl.constexpr,
    REDUCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, EIGHTS: tl.constexpr, PRECISION: tl.constexpr,
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
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = tl.maximum(end_of(lengths, length_step, batch, keys, LENGTHS), 0)
    columns = column + tl.arange(0, COLUMNS)
    key += batch * key_batch + own_head * key_head
    value += batch * value_batch + own_head * value_head
    key_CD = load_rows(key, columns, key_row, columns < end, width, WIDTH)
    value_CE = load_rows(value, columns, value_row, columns < end, depth, DEPTH)
    dkey_CD = tl.zeros([COLUMNS, WIDTH], tl.float32)
    dvalue_CE = tl.zeros([COLUMNS, DEPTH], tl.float32)
    all_queries = queries
    shift, start, queries, first, last, compared_first, compared_last = tiles_of_queries(
        lists, lists_batch, batch, column, queries, end, start, left, right, LEFT, RIGHT, RANGED, ROWS,
        COLUMNS,
    )  # fmt: skip
    for head in range(own_head * groups, own_head * groups + groups):
        indices = lists
        query_at = query + batch * query_batch + head * query_head
        doutput_at = doutput + batch * doutput_batch + head * doutput_head
        table_at = table + batch * table_batch + head * table_head
        at = (batch * heads + head) * all_queries
        if RANGED:
            query_at += tl.cast(shift, tl.int64) * query_row
            doutput_at += tl.cast(shift, tl.int64) * doutput_row
            at += shift
            dkey_CD, dvalue_CE = _add_query_tiles(
                dkey_CD, dvalue_CE, compared_first, compared_last, indices, column, columns, key_CD, value_CE,
                query_at, doutput_at, lse + at, delta + at, table_at, document_of_query, document_of_key,
                start, left, right, scale, queries, end, width, depth, query_row, doutput_row, table_row,
                table_column, LEFT, RIGHT, True, TABLE, LISTED, WHOLE, True, ROWS, COLUMNS, WIDTH, DEPTH,
                PRECISION,
            )  # fmt: skip
        if LISTED:
            list_at = lists + records + batch * lists_batch + head * lists_head
            list_at += column // COLUMNS * (2 + others)
            indices, full, first = listed_tiles(list_at, others)
            last = others
            dkey_CD, dvalue_CE = _add_query_tiles(
                dkey_CD, dvalue_CE, 0, full, indices, column, columns, key_CD, value_CE, query_at, doutput_at,
                lse + at, delta + at, table_at, document_of_query, document_of_key, start, left, right, scale,
                queries, end, width, depth, query_row, doutput_row, table_row, table_column,
                LEFT, RIGHT, DOCUMENTS, TABLE, LISTED, WHOLE, False, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
            )  # fmt: skip
        dkey_CD, dvalue_CE = _add_query_tiles(
            dkey_CD, dvalue_CE, first, last, indices, column, columns, key_CD, value_CE, query_at, doutput_at,
            lse + at, delta + at, table_at, document_of_query, document_of_key, start, left, right, scale,
            queries, end, width, depth, query_row, doutput_row, table_row, table_column,
            LEFT, RIGHT, DOCUMENTS and not RANGED, TABLE, LISTED, WHOLE, True, ROWS, COLUMNS, WIDTH, DEPTH,
            PRECISION,
        )  # fmt: skip
    dkey, dvalue = dkey + batch * dkey_batch, dvalue + batch * dvalue_batch
    _store_rows(dkey + own_head * dkey_head, dkey_CD * scale, columns, keys, dkey_row, width, WIDTH)
    _store_rows(dvalue + own_head * dvalue_head, dvalue_CE, columns, keys, dvalue_row, depth, DEPTH)
