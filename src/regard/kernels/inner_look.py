# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: entropy, alignment, column mass and pooled weights from query and key.

Alignment is the index of the key with the largest weight of each query. The column mass is the sum of the
weights of each key over all queries.

The weight of query i and key j is p = exp(score - lse_i). The kernel computes the scores again, tile by tile,
so that no tensor with T x S elements is stored. A tile is transposed, (keys, queries), for two reasons:

- Sums and maxima over keys: each element of the tile accumulates its own value over all tiles of keys. These
  values are reduced only once, after the last tile.
- The column mass is a sum over queries. In a transposed tile, this is a reduction over few threads.

One program processes several tiles of queries. It adds their column mass to its own row of `mass`; the caller
adds these rows. For the pooled weights, it stores the sum of the weights of each tile. No atomics are used,
so results are reproducible bit by bit.

Tested: under Triton's interpreter (triton 3.7). An earlier version was tested on an NVIDIA H200 (triton 3.6),
before the functions _with_tiles() and _tile_ranges() were separated from the kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.kernel_mask import end_of, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_look_kernel"]

HIDDEN = tl.constexpr(-1e30)
"""Score of a hidden key. It is finite, so that 0 * HIDDEN is 0; 0 * -inf would be NaN."""

NO_KEY = tl.constexpr(2147483647)
"""Greater than the index of every key."""

NEGATIVE_LN2 = tl.constexpr(-0.6931471805599453)
"""-ln 2. The kernel sums p log2(p); multiplied by -ln 2 this is the entropy in nats."""


@triton.jit
def _with_tiles(
    total, best, best_tile, first, last, row, query, level, key, mass, pooled, bias, table,
    document_of_query, document_of_key, start, left, right, scale, bias_scale, queries, end, width,
    key_row, bias_row, bias_column, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, BIAS: tl.constexpr,
    TABLE: tl.constexpr, ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr, MASS: tl.constexpr,
    POOLED: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Process the tiles of keys `first` to last - 1 for one tile of queries, and add to the column mass.

    A tile has COLUMNS keys and ROWS queries. Returns the new `total`, `best` and `best_tile`.

    total: (COLUMNS, ROWS), sum of p log2(p) over the tiles so far, for each element of a tile.
    best: (COLUMNS, ROWS), the largest score so far, for each element of a tile.
    best_tile: (COLUMNS, ROWS), the number of the tile that has this score.
    row: index of the first query.
    level: (ROWS,), lse * log2(e) of the queries.
    mass: the column mass of this program, (S,); it is updated.
    pooled: receives the sum of the weights of each tile of keys, if POOLED.
    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.
    """
    rows = row + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    for tile in range(first, last):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        keys_CD = tl.load(
            key + columns.to(tl.int64)[:, None] * key_row + channels[None, :],
            mask=(columns < end)[:, None] & (channels < width)[None, :], other=0.0,
        )  # fmt: skip
        scores = product(keys_CD, tl.trans(query), tl.zeros([COLUMNS, ROWS], tl.float32), PRECISION)
        scores = scores * (scale * LOG2E)
        inside = (columns < end)[:, None] & (rows < queries)[None, :]
        if BIAS:
            at = columns.to(tl.int64)[:, None] * bias_column + rows.to(tl.int64)[None, :] * bias_row
            scores += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32) * (bias_scale * LOG2E)
            scores = tl.maximum(scores, HIDDEN, propagate_nan=tl.PropagateNan.ALL)
        if MASKED:
            # The tile is transposed: keys stand in the place of queries, and left and right are exchanged.
            seen = visible(
                columns, rows, end, queries, -start, right, left,
                document_of_key + start, document_of_query + start, RIGHT, LEFT, DOCUMENTS,
            )  # fmt: skip
            if TABLE:
                at = columns.to(tl.int64)[:, None] * table_column + rows.to(tl.int64)[None, :] * table_row
                seen = seen & (tl.load(table + at, mask=inside, other=0) != 0)
            scores = tl.where(seen, scores, HIDDEN)
        if ALIGNMENT:
            better = scores > best
            best = tl.where(better, scores, best)
            best_tile = tl.where(better, tile, best_tile)
        if ENTROPY or MASS or POOLED:
            logs = scores - level[None, :]
            weights = tl.exp2(logs)
            if ENTROPY:
                total += weights * logs
            if MASS or POOLED:
                sums = tl.sum(weights, 1)
                if POOLED:
                    tl.store(pooled + tile, tl.sum(sums, 0))
                if MASS:
                    sums += tl.load(mass + columns, mask=columns < end, other=0.0)
                    tl.store(mass + columns, sums, mask=columns < end)
    return total, best, best_tile


@triton.jit
def _tile_ranges(
    row, end, start, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, ANY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return which tiles of keys are visible to the queries row, ..., row + ROWS - 1.

    Returns four indices of tiles: first, full_first, full_last and last. Keys outside the tiles `first` to
    last - 1 are hidden. In the tiles `full_first` to full_last - 1, all keys are visible to all these
    queries.

    ANY: True if the mask (documents or a bool table) can hide keys in any tile. Then full_first = full_last.
    """
    first, full_first, full_last, last = 0, 0, end // COLUMNS, tl.cdiv(end, COLUMNS)
    if LEFT:
        first = tl.maximum(row + start - left, 0) // COLUMNS
        full_first = tl.cdiv(tl.maximum(row + ROWS - 1 + start - left, 0), COLUMNS)
    if RIGHT:
        last = tl.minimum(last, tl.cdiv(tl.maximum(row + ROWS + start + right, 0), COLUMNS))
        full_last = tl.minimum(full_last, tl.maximum(row + start + right + 1, 0) // COLUMNS)
    if ANY:
        full_last = first
    full_first = tl.minimum(tl.maximum(full_first, first), last)
    full_last = tl.minimum(tl.maximum(full_last, full_first), last)
    return first, full_first, full_last, last


@triton.jit
def _chosen_keys(best, best_tile, COLUMNS: tl.constexpr):
    """Return the key with the largest score of each query, (ROWS,); -1 if the query sees no key.

    Of equal scores, the key with the smallest index is chosen. best, best_tile: see _with_tiles().
    """
    columns = best_tile * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    largest = tl.max(best, 0)
    chosen = tl.min(tl.where(best == largest[None, :], columns, NO_KEY), 0)
    return tl.where(largest > HIDDEN, chosen, -1).to(tl.int64)


@triton.jit
def inner_look_kernel(
    query, key, lse, bias, table, entropy, alignment, mass, pooled, lengths, document_of_query,
    document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, bias_scale, heads,
    groups, queries, keys, width, query_tiles, programs, query_batch, query_head, query_row, key_batch,
    key_head, key_row, bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row,
    table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    BIAS: tl.constexpr, TABLE: tl.constexpr, ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr,
    MASS: tl.constexpr, POOLED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, EIGHTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the requested values. Program p processes the query tiles p, p + programs, ...

    Launch grid: (programs, B H). Program p processes the query tiles p, p + programs, p + 2 programs, ...
    lse: (B, H, T), with -inf for queries that see no key.
    bias: added to the scores. Strides are 0 in dimensions that are broadcast.
    table: a mask, nonzero where a query sees a key. Strides are 0 in dimensions that are broadcast.
    entropy: (B, H, T), receives the entropy.
    alignment: (B, H, T), receives the index of the key with the largest score; -1 if a query sees no key.
    mass: (programs, B H, S), the column mass is added to it; the caller has set it to 0.
    pooled: (B H, query tiles, key tiles), receives the sums of the weights; the caller has set it to 0.
    scale, bias_scale: factors of the inner product and of the bias.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head // groups * key_head
    bias += batch * bias_batch + head * bias_head
    table += batch * table_batch + head * table_head
    key_tiles = tl.cdiv(keys, COLUMNS)
    mass += (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + both) * keys
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    channels = tl.arange(0, WIDTH)
    for query_tile in range(tl.program_id(0), query_tiles, programs):
        row = query_tile * ROWS
        tiles = pooled + (both * query_tiles + query_tile) * key_tiles
        rows = row + tl.arange(0, ROWS)
        queries_RD = tl.load(
            query + rows.to(tl.int64)[:, None] * query_row + channels[None, :],
            mask=(rows < queries)[:, None] & (channels < width)[None, :], other=0.0,
        )  # fmt: skip
        sums = tl.load(lse + both * queries + rows, mask=rows < queries, other=float("-inf"))
        level = tl.where(sums == float("-inf"), -HIDDEN, sums * LOG2E)  # all weights 0 if no key is seen
        first, full_first, full_last, last = _tile_ranges(
            row, end, start, left, right, LEFT, RIGHT, DOCUMENTS or TABLE, ROWS, COLUMNS
        )
        total = tl.zeros([COLUMNS, ROWS], tl.float32)
        best = tl.full([COLUMNS, ROWS], HIDDEN, tl.float32)
        best_tile = tl.zeros([COLUMNS, ROWS], tl.int32)
        total, best, best_tile = _with_tiles(
            total, best, best_tile, first, full_first, row, queries_RD, level, key, mass, tiles, bias,
            table, document_of_query, document_of_key, start, left, right, scale, bias_scale, queries, end,
            width, key_row, bias_row, bias_column, table_row, table_column, LEFT, RIGHT, DOCUMENTS,
            BIAS, TABLE, ENTROPY, ALIGNMENT, MASS, POOLED, True, ROWS, COLUMNS, WIDTH, PRECISION,
        )  # fmt: skip
        total, best, best_tile = _with_tiles(
            total, best, best_tile, full_first, full_last, row, queries_RD, level, key, mass, tiles, bias,
            table, document_of_query, document_of_key, start, left, right, scale, bias_scale, queries, end,
            width, key_row, bias_row, bias_column, table_row, table_column, LEFT, RIGHT, DOCUMENTS,
            BIAS, TABLE, ENTROPY, ALIGNMENT, MASS, POOLED, False, ROWS, COLUMNS, WIDTH, PRECISION,
        )  # fmt: skip
        total, best, best_tile = _with_tiles(
            total, best, best_tile, full_last, last, row, queries_RD, level, key, mass, tiles, bias,
            table, document_of_query, document_of_key, start, left, right, scale, bias_scale, queries, end,
            width, key_row, bias_row, bias_column, table_row, table_column, LEFT, RIGHT, DOCUMENTS,
            BIAS, TABLE, ENTROPY, ALIGNMENT, MASS, POOLED, True, ROWS, COLUMNS, WIDTH, PRECISION,
        )  # fmt: skip
        if ENTROPY:
            tl.store(entropy + both * queries + rows, tl.sum(total, 0) * NEGATIVE_LN2, mask=rows < queries)
        if ALIGNMENT:
            chosen = _chosen_keys(best, best_tile, COLUMNS)
            tl.store(alignment + both * queries + rows, chosen, mask=rows < queries)
        tl.debug_barrier()  # another thread can add to the same column mass for the next tile of queries
