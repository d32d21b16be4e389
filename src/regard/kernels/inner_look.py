# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: entropy, alignment, column mass and pooled weights from query and key.

Alignment is the index of the key with the largest weight of each query. The column mass is the sum of the
weights of each key over all queries.

The weight of query i and key j is p = exp(score - lse_i). The kernel computes the scores again, tile by tile,
so that no tensor with T x S elements is stored. A tile is transposed, (keys, queries). In the registers of a
matrix product, a thread then has two keys, j and j + 8, of 8 or more queries:

- Sums and maxima over keys: a thread adds its two keys, and accumulates the result over all tiles of keys
  (_halves). The accumulators of different threads are reduced only once, after the last tile.
- The column mass is a sum over queries. Most of it is a sum inside a thread.

One program processes several tiles of queries. It adds their column mass to its own rows of `mass`, one for
each group of queries that a group of warps computes; the caller adds these rows. For the pooled weights, it
stores the sum of the weights of each tile. No atomics are used, so results are reproducible bit by bit.

Tested: under Triton's interpreter (triton 3.7), and on an NVIDIA H200 (triton 3.6), before _hide() and
_with_queries() were separated from the kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.kernel_mask import end_of
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_look_kernel"]

HIDDEN = tl.constexpr(-1e30)
"""log2 of the weight of a hidden key. It is finite, so that 0 * HIDDEN is 0; 0 * -inf would be NaN."""

NO_KEY = tl.constexpr(2147483647)
"""Greater than the index of every key."""

NEGATIVE_LN2 = tl.constexpr(-0.6931471805599453)
"""-ln 2. The kernel sums p log2(p); multiplied by -ln 2 this is the entropy in nats."""


@triton.jit
def _halves(tile, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Split a tile (COLUMNS, ROWS) into the keys j and the keys j + 8, where j = 0 to 7, 16 to 23, ...

    Both results have the shape (COLUMNS / 16, 8, ROWS). On a GPU, no data moves between threads: after a
    matrix product, a thread has the elements of both keys.
    """
    return tl.split(tl.permute(tl.reshape(tile, [COLUMNS // 16, 2, 8, ROWS]), (0, 2, 3, 1)))


@triton.jit
def _larger(value, index, best, best_index, ASSEMBLY: tl.constexpr):
    """Return the larger of `value` and `best`, and its index; `best` if they are equal.

    ASSEMBLY: use inline assembly. Otherwise, ptxas computes more comparisons at once than there are predicate
        registers, and moves their results to other registers, which costs about 60 instructions per tile.
    """
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.f32 p, $2, $4; selp.f32 $0, $2, $4, p; selp.b32 $1, $3, $5, p; }",
            "=f,=r,f,r,f,r", [value, index, best, best_index], dtype=(tl.float32, tl.int32),
            is_pure=True, pack=1,
        )  # fmt: skip
    better = value > best
    return tl.where(better, value, best), tl.where(better, index, best_index)


@triton.jit
def _hide(
    logs, columns, rows, position, low, high, table, document_of_query, document_of_key, queries, end,
    table_row, table_column, LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Return `logs`, (COLUMNS, ROWS), with HIDDEN where the mask hides the key.

    position: the position of the first query. low, high: (ROWS,), keys j with low <= j < high are visible.
    """
    seen = columns[:, None] < high[None, :]
    if LEFT:
        seen = seen & (columns[:, None] >= low[None, :])
    if DOCUMENTS:
        at = position + tl.arange(0, rows.shape[0])
        of_query = tl.load(document_of_query + at, mask=rows < queries, other=-1)
        of_key = tl.load(document_of_key + columns, mask=columns < end, other=-1)
        seen = seen & (of_key[:, None] == of_query[None, :])
    if TABLE:
        inside = (columns < end)[:, None] & (rows < queries)[None, :]
        at = columns.to(tl.int64)[:, None] * table_column + rows.to(tl.int64)[None, :] * table_row
        seen = seen & (tl.load(table + at, mask=inside, other=0) != 0)
    return tl.where(seen, logs, HIDDEN)


@triton.jit
def _with_tiles(
    total, best, best_index, first, last, row, query, level, low, high, key, block, block_row,
    block_column, mass, pooled, bias, table, document_of_query, document_of_key, position, scale,
    bias_scale, queries, end, width, key_row, mass_step, pooled_step, bias_row, bias_column, table_row,
    table_column,
    LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr, MASS: tl.constexpr, POOLED: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Process the tiles of keys `first` to last - 1 for one tile of queries, and add to the column mass.

    A tile has COLUMNS keys and ROWS queries. Returns the new `total`, `best` and `best_index`, which have the
    shape of _halves(), (COLUMNS / 16, 8, ROWS).

    total: sum of p log2(p) over the keys so far, for each element.
    best: the largest log2(p) so far, for each element.
    best_index: twice the number of the tile that has this value, plus 1 if it is a key of the second half.
    row, position: index and position of the first query.
    level: (ROWS,), lse * log2(e) of the queries.
    block, block_row, block_column: a tensor descriptor of the keys, and the place of the first key, if TMA.
    low, high: (ROWS,), the window of the mask: keys j with low <= j < high are visible.
    mass: the column mass of this program for each group of queries, (S,) each; it is updated.
    pooled: receives the sum of the weights of each group of queries and each tile of keys, if POOLED.
    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.
    """
    rows = row + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    places = tl.arange(0, COLUMNS)
    groups = tl.arange(0, GROUPS)
    of_tile = places[:, None] * key_row + channels[None, :]
    mass_of_tile = mass + places[:, None] + groups[None, :] * mass_step
    for tile in range(first, last):
        columns = tile * COLUMNS + places
        keys = key + tl.cast(tile, tl.int64) * (COLUMNS * key_row)
        if MASS:  # loaded before the matrix product, so that the program need not wait for it
            if MASKED:
                sums = tl.load(mass_of_tile + tile * COLUMNS, mask=(columns < end)[:, None], other=0.0)
            else:
                sums = tl.load(mass_of_tile + tile * COLUMNS)
        if TMA:
            keys_CD = block.load([block_row + tile * COLUMNS, block_column])
        elif WHOLE and not MASKED:
            keys_CD = tl.load(keys + of_tile)
        else:
            inside = (columns < end)[:, None] & (channels < width)[None, :]
            keys_CD = tl.load(keys + of_tile, mask=inside, other=0.0)
        logs = product(keys_CD, tl.trans(query), tl.zeros([COLUMNS, ROWS], tl.float32), PRECISION)
        logs = logs * (scale * bias_scale * LOG2E) - level[None, :]
        if BIAS:
            inside = (columns < end)[:, None] & (rows < queries)[None, :]
            at = columns.to(tl.int64)[:, None] * bias_column + rows.to(tl.int64)[None, :] * bias_row
            logs += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32) * (bias_scale * LOG2E)
            logs = tl.maximum(logs, HIDDEN, propagate_nan=tl.PropagateNan.ALL)
        if MASKED:
            logs = _hide(
                logs, columns, rows, position, low, high, table, document_of_query, document_of_key, queries,
                end, table_row, table_column, LEFT, DOCUMENTS, TABLE,
            )  # fmt: skip
        logs_first, logs_second = _halves(logs, COLUMNS, ROWS)
        if ALIGNMENT:
            best, best_index = _larger(logs_first, 2 * tile, best, best_index, ASSEMBLY)
            best, best_index = _larger(logs_second, 2 * tile + 1, best, best_index, ASSEMBLY)
        if ENTROPY or MASS or POOLED:
            weights = tl.exp2(logs)
            if ENTROPY:
                weights_first, weights_second = _halves(weights, COLUMNS, ROWS)
                total += weights_first * logs_first
                total += weights_second * logs_second
            if MASS or POOLED:
                added = tl.sum(tl.reshape(weights, [COLUMNS, GROUPS, ROWS // GROUPS]), 2)
                if POOLED:
                    tl.store(pooled + groups * pooled_step + tile, tl.sum(added, 0))
                if MASS:
                    if MASKED:
                        tl.store(mass_of_tile + tile * COLUMNS, sums + added, mask=(columns < end)[:, None])
                    else:
                        tl.store(mass_of_tile + tile * COLUMNS, sums + added)
    return total, best, best_index


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
def _chosen_keys(best, best_index, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Return the key with the largest score of each query, (ROWS,); -1 if the query sees no key.

    Of equal scores, the key with the smallest index is chosen. best, best_index: see _with_tiles().
    """
    places = tl.arange(0, COLUMNS // 16)[:, None] * 16 + tl.arange(0, 8)[None, :]
    columns = best_index // 2 * COLUMNS + best_index % 2 * 8 + places[:, :, None]
    best, columns = tl.reshape(best, [COLUMNS // 2, ROWS]), tl.reshape(columns, [COLUMNS // 2, ROWS])
    largest = tl.max(best, 0)
    chosen = tl.min(tl.where(best == largest[None, :], columns, NO_KEY), 0)
    return tl.where(largest > HIDDEN, chosen, -1).to(tl.int64)


@triton.jit
def _with_queries(
    row, query, key, block, block_row, block_column, lse, bias, table, entropy, alignment, mass, pooled,
    document_of_query, document_of_key, start, left, right, scale, bias_scale, queries, end, width, query_row,
    key_row, mass_step, pooled_step, bias_row, bias_column, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr, MASS: tl.constexpr, POOLED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Compute the requested values for the queries row, ..., row + ROWS - 1, from all tiles of keys."""
    rows = row + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    queries_RD = tl.load(
        query + rows.to(tl.int64)[:, None] * query_row + channels[None, :],
        mask=(rows < queries)[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip
    sums = tl.load(lse + rows, mask=rows < queries, other=float("-inf"))
    level = tl.where(sums == float("-inf"), -HIDDEN, sums * LOG2E)  # all weights 0 if no key is seen
    low = rows + (start - left)
    high = rows * 0 + end
    if RIGHT:
        high = tl.minimum(high, rows + (start + right + 1))
    first, full_first, full_last, last = _tile_ranges(
        row, end, start, left, right, LEFT, RIGHT, DOCUMENTS or TABLE, ROWS, COLUMNS
    )
    total = tl.zeros([COLUMNS // 16, 8, ROWS], tl.float32)
    best = tl.full([COLUMNS // 16, 8, ROWS], HIDDEN, tl.float32)
    best_index = tl.zeros([COLUMNS // 16, 8, ROWS], tl.int32)
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        first_tile, last_tile = first, full_first
        if part == 1:
            first_tile, last_tile = full_first, full_last
        if part == 2:
            first_tile, last_tile = full_last, last
        if (part == 0 and LEFT) or (part == 1 and not (DOCUMENTS or TABLE)) or part == 2:
            total, best, best_index = _with_tiles(
                total, best, best_index, first_tile, last_tile, row, queries_RD, level, low, high, key, block,
                block_row, block_column, mass, pooled, bias, table, document_of_query, document_of_key,
                row + start, scale, bias_scale, queries, end, width, key_row, mass_step, pooled_step,
                bias_row, bias_column, table_row, table_column, LEFT, DOCUMENTS, BIAS, TABLE, ENTROPY,
                ALIGNMENT, MASS, POOLED, part != 1, ROWS, COLUMNS, WIDTH, GROUPS, WHOLE, TMA, PRECISION,
                ASSEMBLY,
            )  # fmt: skip
    if ENTROPY:
        sums = tl.sum(tl.reshape(total, [COLUMNS // 2, ROWS]), 0) * NEGATIVE_LN2
        tl.store(entropy + rows, sums, mask=rows < queries)
    if ALIGNMENT:
        chosen = _chosen_keys(best, best_index, COLUMNS, ROWS)
        tl.store(alignment + rows, chosen, mask=rows < queries)


@triton.jit
def inner_look_kernel(
    query, key, block, lse, bias, table, entropy, alignment, mass, pooled, lengths, document_of_query,
    document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, bias_scale, heads,
    groups, queries, keys, width, query_tiles, programs, query_batch, query_head, query_row, key_batch,
    key_head, key_row, bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row,
    table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    BIAS: tl.constexpr, TABLE: tl.constexpr, ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr,
    MASS: tl.constexpr, POOLED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr, EIGHTS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Compute the requested values. Program p processes several query tiles, the last one first.

    Launch grid: (programs, B H). With a causal mask, the last tiles of queries see the most keys, so they
    are processed first.

    The score is bias_scale * (scale * q . k + bias).

    block: the keys as a tensor descriptor if TMA; otherwise any tensor, which is not read.
    lse: (B, H, T), with -inf for queries that see no key.
    bias: added to the scores. Strides are 0 in dimensions that are broadcast.
    table: a mask, nonzero where a query sees a key. Strides are 0 in dimensions that are broadcast.
    entropy: (B, H, T), receives the entropy.
    alignment: (B, H, T), receives the index of the key with the largest score; -1 if a query sees no key.
    mass: (programs, GROUPS, B H, S), the column mass is added to it; the caller has set it to 0.
    pooled: (B H, query tiles, GROUPS, key tiles), receives the sums of the weights; the caller has set it
        to 0.
    GROUPS: number of groups of queries in a tile, each computed by its own warps.
    WHOLE: whether the width D is WIDTH, so that no channel has to be masked.
    TMA: load keys with the tensor memory accelerator of Hopper and later GPUs. Needs WHOLE.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    both = tl.program_id(1).to(tl.int64)
    batch, head = both // heads, both % heads
    query += batch * query_batch + head * query_head
    first_key = batch * key_batch + head // groups * key_head
    key += first_key
    block_row, block_column = (first_key // key_row).to(tl.int32), (first_key % key_row).to(tl.int32)
    bias += batch * bias_batch + head * bias_head
    table += batch * table_batch + head * table_head
    key_tiles = tl.cdiv(keys, COLUMNS)
    mass_step = tl.num_programs(1).to(tl.int64) * keys
    mass += tl.program_id(0).to(tl.int64) * GROUPS * mass_step + both * keys
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    for turn in range(tl.program_id(0), query_tiles, programs):
        query_tile = query_tiles - 1 - turn
        tiles = pooled + (both * query_tiles + query_tile) * GROUPS * key_tiles
        _with_queries(
            query_tile * ROWS, query, key, block, block_row, block_column, lse + both * queries, bias, table,
            entropy + both * queries, alignment + both * queries, mass, tiles, document_of_query,
            document_of_key, start, left, right, scale, bias_scale, queries, end, width, query_row, key_row,
            mass_step, key_tiles, bias_row, bias_column, table_row, table_column, LEFT, RIGHT, DOCUMENTS,
            BIAS, TABLE, ENTROPY, ALIGNMENT, MASS, POOLED, ROWS, COLUMNS, WIDTH, GROUPS, WHOLE, TMA,
            PRECISION, ASSEMBLY,
        )  # fmt: skip
        tl.debug_barrier()  # another thread can add to the same column mass for the next tile of queries
