# mypy: disable-error-code="no-untyped-def"
"""Inner-product attention with masks: forward pass, by online softmax over tiles of keys.

The kernel reads no value that the mask hides from all queries of a tile, so a NaN there has no effect, and
key and value need no copy. Tiles that are hidden as a whole are skipped. No table of the mask is built. If
the mask is only a bool tensor, masks.py lists the tiles to process; if it has documents, the range of keys of
each tile of queries.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.inner.masks import (
    listed_tiles,
    load_rows,
    only_seen,
    seen_pairs,
    tiles_of_keys,
    used_bits,
    used_keys,
)
from regard.kernels.mask import end_of
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["NOT_SPECIALISED", "inner_forward_kernel"]

NOT_SPECIALISED = ("start", "left", "right", "queries", "keys", "heads", "groups", "length_step")
"""Arguments for whose values Triton compiles no variants of a kernel. Decoding changes them in every step."""


@triton.jit
def _read_tiles(
    total_RE, sum_R, best_R, first, last, indices, used, row, query_RD, key, value, table,
    document_of_query, document_of_key, start, left, right, scale, queries, end, width, depth, key_row,
    value_row, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    LISTED: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, REDUCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the tiles of keys `first` to last - 1 to the sums of one tile of queries.

    indices, used: if LISTED, the tiles of keys are indices[first], ..., indices[last - 1] instead, and `used`
        points to the words of the record, see masks.py.
    total_RE: (ROWS, DEPTH), sum of exp(score - best) * value.
    sum_R, best_R: (ROWS,), sum of exp(score - best), and the largest score, in units of log 2.
    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.

    Returns the new total_RE, sum_R and best_R.
    """
    rows = row + tl.arange(0, ROWS)
    for index in range(first, last):
        tile = tl.load(indices + index) if LISTED else index
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        used_C = columns < end
        key_CD = load_rows(key, columns, key_row, used_C, width, WIDTH)
        scores_RC = product(query_RD, tl.trans(key_CD), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION)
        if MASKED and LISTED:
            scores_RC = only_seen(
                scores_RC, table, table_row, rows, tile * COLUMNS, queries, COLUMNS, False, True, PRECISION
            )
            used_C = used_bits(used, columns, tile * COLUMNS, COLUMNS)
        elif MASKED:
            seen_RC = seen_pairs(
                rows, columns, queries, end, start, left, right, document_of_query, document_of_key, table,
                table_row, table_column, LEFT, RIGHT, DOCUMENTS, TABLE, WHOLE, False,
            )  # fmt: skip
            scores_RC = tl.where(seen_RC, scores_RC, float("-inf"))
            used_C = used_keys(  # 0 * NaN is NaN, so values of hidden keys are 0
                seen_RC, columns, row, tl.minimum(row + ROWS, queries) - 1, end, start, left, right, LEFT,
                RIGHT, REDUCE,
            )  # fmt: skip
        # `scale` is positive, so it is applied to the maximum, and by one multiply-add to each score.
        new_R = tl.maximum(best_R, tl.max(scores_RC, 1) * (scale * LOG2E))
        level_R = tl.where(new_R == float("-inf"), 0.0, new_R)
        weights_RC = tl.exp2(scores_RC * (scale * LOG2E) - level_R[:, None])
        factor_R = tl.exp2(best_R - level_R)
        sum_R = sum_R * factor_R + tl.sum(weights_RC, 1)
        value_CE = load_rows(value, columns, value_row, used_C, depth, DEPTH)
        total_RE = product(weights_RC.to(value_CE.dtype), value_CE, total_RE * factor_R[:, None], PRECISION)
        best_R = new_R
    return total_RE, sum_R, best_R


@triton.jit
def _read_keys(
    row, batch, head, query_RD, key, value, table, document_of_query, document_of_key, lists, start, left,
    right, scale, queries, end, width, depth, key_row, value_row, table_row, table_column, lists_batch,
    lists_head, others, records,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    LISTED: tl.constexpr, RANGED: tl.constexpr, WHOLE: tl.constexpr, REDUCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the sums of one tile of queries over all keys that it sees: total_RE, sum_R and best_R.

    key, value, table: of the current sequence and head. The arguments have the same meaning as in
    inner_forward_kernel, and the results as in _read_tiles().
    """
    total_RE = tl.zeros([ROWS, DEPTH], tl.float32)
    sum_R = tl.zeros([ROWS], tl.float32)
    best_R = tl.full([ROWS], float("-inf"), tl.float32)
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
        total_RE, sum_R, best_R = _read_tiles(
            total_RE, sum_R, best_R, compared_first, compared_last, indices, indices, row, query_RD, key,
            value, table, document_of_query, document_of_key, start, left, right, scale, queries, end,
            width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, True, TABLE, LISTED,
            WHOLE, True, True, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    if LEFT and not ANY:
        total_RE, sum_R, best_R = _read_tiles(
            total_RE, sum_R, best_R, first, full_first, indices, indices + others, row, query_RD, key,
            value, table, document_of_query, document_of_key, start, left, right, scale, queries, end,
            width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, COMPARED, TABLE,
            LISTED, WHOLE, True, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    if LISTED or not ANY:
        total_RE, sum_R, best_R = _read_tiles(
            total_RE, sum_R, best_R, full_first, full_last, indices, indices + others, row, query_RD, key,
            value, table, document_of_query, document_of_key, start, left, right, scale, queries, end,
            width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, COMPARED, TABLE,
            LISTED, WHOLE, False, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
        )  # fmt: skip
    total_RE, sum_R, best_R = _read_tiles(
        total_RE, sum_R, best_R, first if LISTED else full_last, last, indices, indices + others, row,
        query_RD, key, value, table, document_of_query, document_of_key, start, left, right, scale, queries,
        end, width, depth, key_row, value_row, table_row, table_column, LEFT, RIGHT, COMPARED, TABLE,
        LISTED, WHOLE, True, REDUCE and not RANGED, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
    )  # fmt: skip
    return total_RE, sum_R, best_R


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def inner_forward_kernel(
    query, key, value, output, lse, lengths, table, document_of_query, document_of_key, lists,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    output_batch, output_head, output_row, table_batch, table_head, table_row, table_column,
    documents_query_step, documents_key_step, lists_batch, lists_head, others, records,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    TABLE: tl.constexpr, LISTED: tl.constexpr, RANGED: tl.constexpr, WHOLE: tl.constexpr,
    REDUCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, EIGHTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute output and lse of one tile of queries.

    Launch grid: (query tiles * B H,). The tiles of one head are next to each other, the last tile first,
    because with a causal mask it takes the longest.
    table, lists: if LISTED, words and records of inner_table_kernel, with `others` tiles of keys. The records
        begin at the element `records`.
    lists: if RANGED, the ranges of inner_documents_kernel.
    output, lse: (B, H, T, E) and (B, H, T), receive the results. Without a visible key they are 0 and -inf.
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
    output += batch * output_batch + head * output_head
    table += batch * table_batch + head * table_head
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = tl.maximum(end_of(lengths, length_step, batch, keys, LENGTHS), 0)
    rows = row + tl.arange(0, ROWS)
    query_RD = load_rows(query, rows, query_row, rows < queries, width, WIDTH)
    total_RE, sum_R, best_R = _read_keys(
        row, batch, head, query_RD, key, value, table, document_of_query, document_of_key, lists, start,
        left, right, scale, queries, end, width, depth, key_row, value_row, table_row, table_column,
        lists_batch, lists_head, others, records, LEFT, RIGHT, DOCUMENTS, TABLE, LISTED, RANGED, WHOLE,
        REDUCE, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION,
    )  # fmt: skip
    none_R = sum_R == 0.0
    level_R = tl.where(none_R, float("-inf"), (best_R + tl.log2(sum_R)) / LOG2E)
    tl.store(lse + both * queries + rows, level_R, mask=rows < queries)
    total_RE = total_RE / tl.where(none_R, 1.0, sum_R)[:, None]
    channels = tl.arange(0, DEPTH)
    tl.store(
        output + rows.to(tl.int64)[:, None] * output_row + channels[None, :],
        total_RE.to(output.dtype.element_ty),
        mask=(rows < queries)[:, None] & (channels < depth)[None, :],
    )
