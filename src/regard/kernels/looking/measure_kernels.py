# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: entropy, alignment, column mass and pooled weights from query and key.

Alignment is the index of the key with the largest weight of each query. The column mass is the sum of the
weights of each key over all queries.

The weight of query i and key j is p = exp(score - lse_i). The kernel computes the scores again, tile by tile,
so that no tensor with T x S elements is stored. A tile is transposed, (keys, queries). In the registers of a
matrix product, a thread then has the keys j and j + 8 of 8 or more queries, and the keys j + 64 and j + 72 if
a tile has 128 keys. These keys form a slot:

- Sums and maxima over keys: a thread adds the keys of a slot, and accumulates the result over all tiles of
  keys (_parts). The accumulators of different threads are reduced only once, after the last tile.
- The largest weight of a query is found with its slot. Which key of the slot has it is computed at the end.
  For the k largest weights, only the largest value of each slot is found; see candidates.py.
- The column mass is a sum over queries. Most of it is a sum inside a thread. Programs add their sums by
  integer atomics, as multiples of 1 / unit: integers have the same sum in any order, so results are
  reproducible bit by bit.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.inner.tiles import key_tiles
from regard.kernels.looking.scores import (
    HIDDEN,
    NO_KEY,
    hide,
    load_queries,
    log_weights,
    place_of_program,
    tile_logs,
)
from regard.kernels.mask import end_of
from regard.kernels.matrix_product import row_products

__all__ = ["inner_look_kernel", "inner_mass_kernel"]

NEGATIVE_LN2 = tl.constexpr(-0.6931471805599453)
"""-ln 2. The kernel sums p log2(p); multiplied by -ln 2 this is the entropy in nats."""


@triton.jit
def _parts(tile, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Split a tile (COLUMNS, ROWS) into the keys j, j + 8, j + 64 and j + 72 of each slot.

    All results have the shape (slots / 8, 8, ROWS). If a tile has less than 128 keys, there are only the keys
    j and j + 8, and the last two results repeat the first two. On a GPU, no data moves between threads:
    after a matrix product, a thread has all keys of a slot.
    """
    if COLUMNS == 128:
        ordered = tl.permute(tl.reshape(tile, [2, 4, 2, 8, ROWS]), (1, 3, 4, 0, 2))
        low, high = tl.split(ordered)
        first, third = tl.split(low)
        second, fourth = tl.split(high)
    else:
        first, second = tl.split(tl.permute(tl.reshape(tile, [COLUMNS // 16, 2, 8, ROWS]), (0, 2, 3, 1)))
        third, fourth = first, second
    return first, second, third, fourth


@triton.jit
def _larger(value, tile, best, best_tile, ASSEMBLY: tl.constexpr):
    """Return the larger of `value` and `best`, and its tile; `best` if they are equal.

    ASSEMBLY: use inline assembly. Otherwise, ptxas computes more comparisons at once than there are predicate
        registers, and moves their results to other registers, which costs about 60 instructions per tile.
    """
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.f32 p, $2, $4; selp.f32 $0, $2, $4, p; selp.b32 $1, $3, $5, p; }",
            "=f,=r,f,r,f,r", [value, tile, best, best_tile], dtype=(tl.float32, tl.int32),
            is_pure=True, pack=1,
        )  # fmt: skip
    better = value > best
    return tl.where(better, value, best), tl.where(better, tile, best_tile)


@triton.jit
def _larger_with_half(value, tile, first, best, best_tile, best_first, ASSEMBLY: tl.constexpr):
    """Return the same as _larger(), and the value of the first key of the slot, `first`, at that time."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.f32 p, $3, $6; selp.f32 $0, $3, $6, p; selp.b32 $1, $4, $7, p;"
            " selp.f32 $2, $5, $8, p; }",
            "=f,=r,=f,f,r,f,f,r,f", [value, tile, first, best, best_tile, best_first],
            dtype=(tl.float32, tl.int32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    better = value > best
    best, best_tile = tl.where(better, value, best), tl.where(better, tile, best_tile)
    return best, best_tile, tl.where(better, first, best_first)


@triton.jit
def _begin_quads(THREADS: tl.constexpr):
    """Declare the register regard_key: the key of a tile whose mass the thread adds, see _add_mass().

    In the result of a matrix product of one warp group on Hopper, four neighbouring threads have the same
    keys, j and j + 8. The first one adds the mass of j, the second one that of j + 8. The others have a
    number that is larger than every key. The declaration is not in braces, so that it belongs to the whole
    kernel.
    """
    tl.inline_asm_elementwise(
        ".reg .u32 regard_key; { .reg .u32 thread, part; .reg .pred none; mov.u32 thread, %tid.x;"
        " shr.u32 part, thread, 5; shl.b32 regard_key, part, 4; bfe.u32 part, thread, 2, 3;"
        " add.u32 regard_key, regard_key, part; and.b32 part, thread, 1;"
        " mad.lo.u32 regard_key, part, 8, regard_key; and.b32 part, thread, 2; setp.ne.u32 none, part, 0;"
        " @none mov.u32 regard_key, 1073741824; } mov.u32 $0, 0;",
        "=r,r", [tl.arange(0, THREADS)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _add_mass(
    sums, mass, tile, end, unit, nan_units, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, QUADS: tl.constexpr
):
    """Add the column mass of a tile, (COLUMNS, GROUPS), to `mass`, (S,), by integer atomics.

    QUADS: use inline assembly, in which each thread adds one key, see _begin_quads(). tl.atomic_add moves the
        sums between threads before, and computes the address of each key again.
    """
    if QUADS:
        room, pointer = tl.cast(end - tile * COLUMNS, tl.int32), (mass + tile * COLUMNS).to(tl.int64)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .f32 sum, units; .reg .u32 half; .reg .b64 number, at;"
            " and.b32 half, regard_key, 8; setp.ne.u32 p, half, 0; selp.f32 sum, $2, $1, p;"
            " mul.f32 units, sum, $7; setp.num.f32 p, sum, sum; selp.f32 units, units, $9, p;"
            " cvt.rzi.s64.f32 number, units; mad.wide.u32 at, regard_key, 8, $3;"
            " setp.lt.s32 p, regard_key, $5; @p red.relaxed.gpu.global.add.u64 [at], number;"
            " mov.u32 $0, 0; }",
            "=r,f,f,l,l,r,r,f,f,f,f", [sums, pointer, room, unit, nan_units], dtype=tl.int16, is_pure=False,
            pack=2,
        )  # fmt: skip
    else:
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        units = tl.where(sums == sums, sums * unit, nan_units).to(tl.int64)
        at = mass + columns[:, None] + tl.arange(0, GROUPS)[None, :] * 0
        tl.atomic_add(at, units, mask=(columns < end)[:, None], sem="relaxed")


@triton.jit
def _with_tiles(
    total, best, best_tile, best_first, first_tile, last_tile, row, query, level, low, high, key, block,
    block_row, block_column, mass, pooled, bias, table, document_of_query, document_of_key, start, scale, cap,
    bias_scale, unit, nan_units, queries, end, width, key_row, pooled_step, bias_row, bias_column,
    table_row, table_column,
    LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr, MAXIMA: tl.constexpr, MASS: tl.constexpr,
    POOLED: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, HALVES: tl.constexpr, QUADS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Process the tiles of keys first_tile to last_tile - 1 for one tile of queries.

    A tile has COLUMNS keys and ROWS queries. Returns the new `total`, `best`, `best_tile` and `best_first`,
    which have an element for each slot and query, (slots / 8, 8, ROWS).

    total: sum of p log2(p) over the keys so far.
    best: the largest log2(p) so far.
    best_tile: the number of the tile that has this value.
    best_first: log2(p) of the first key of the slot in that tile, if HALVES. A slot has two keys then.
    row: index of the first query.
    mass: the column mass, (S,), as multiples of 1 / unit; it is updated. nan_units is added for a NaN.
    pooled: receives the sum of the weights of each group of queries and of 64 keys, if POOLED.
    For the other arguments, see tile_logs().
    """
    rows = row + tl.arange(0, ROWS)
    groups = tl.arange(0, GROUPS)
    blocks = tl.arange(0, BLOCKS)
    for tile in range(first_tile, last_tile):
        logs = tile_logs(
            tile, rows, query, level, low, high, key, block, block_row, block_column, bias, table,
            document_of_query, document_of_key, start, scale, cap, bias_scale, queries, end, width, key_row,
            bias_row, bias_column, table_row, table_column, LEFT, DOCUMENTS, CAP, BIAS, TABLE, MASKED, ROWS,
            COLUMNS, WIDTH, WHOLE, TMA, PRECISION,
        )  # fmt: skip
        first, second, third, fourth = _parts(logs, COLUMNS, ROWS)
        if ALIGNMENT:
            largest = tl.maximum(first, second)
            if COLUMNS == 128:
                largest = tl.maximum(largest, tl.maximum(third, fourth))
            if HALVES:
                best, best_tile, best_first = _larger_with_half(
                    largest, tile, first, best, best_tile, best_first, ASSEMBLY
                )
            else:
                best, best_tile = _larger(largest, tile, best, best_tile, ASSEMBLY)
        if MAXIMA:
            best = tl.maximum(tl.maximum(best, first), second)
            if COLUMNS == 128:
                best = tl.maximum(tl.maximum(best, third), fourth)
        if ENTROPY or MASS or POOLED:
            weights = tl.exp2(logs)
            if ENTROPY:
                of_first, of_second, of_third, of_fourth = _parts(weights, COLUMNS, ROWS)
                total += of_first * first
                total += of_second * second
                if COLUMNS == 128:
                    total += of_third * third
                    total += of_fourth * fourth
            if MASS or POOLED:
                sums = tl.sum(tl.reshape(weights, [COLUMNS, GROUPS, ROWS // GROUPS]), 2)
                if POOLED:
                    of_blocks = tl.sum(tl.reshape(sums, [BLOCKS, COLUMNS // BLOCKS, GROUPS]), 1)
                    at = groups[None, :] * pooled_step + tile * BLOCKS + blocks[:, None]
                    tl.store(pooled + at, of_blocks, mask=(tile * BLOCKS + blocks < pooled_step)[:, None])
                if MASS:
                    _add_mass(sums, mass, tile, end, unit, nan_units, COLUMNS, GROUPS, QUADS)
    return total, best, best_tile, best_first


@triton.jit
def _key_of_half(best, best_tile, best_first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the key with the largest score of each query, (ROWS,), if HALVES; -1 if it sees no key."""
    SLOTS: tl.constexpr = COLUMNS // 2
    slots = tl.arange(0, SLOTS)
    best, best_tile = tl.reshape(best, [SLOTS, ROWS]), tl.reshape(best_tile, [SLOTS, ROWS])
    halves = tl.where(tl.reshape(best_first, [SLOTS, ROWS]) == best, 0, 8)
    keys = best_tile * COLUMNS + (slots // 8 * 16 + slots % 8)[:, None] + halves
    largest = tl.max(best, 0)
    chosen = tl.min(tl.where(best == largest[None, :], keys, NO_KEY), 0)
    return tl.where(largest > HIDDEN, chosen, -1).to(tl.int64)


@triton.jit
def _key_of_slot(
    best, best_tile, best_first, row, query, level, low, high, key, bias, table, document_of_query,
    document_of_key, start, scale, cap, bias_scale, queries, end, width, query_row, key_row, bias_row,
    bias_column, table_row, table_column,
    LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Return the key with the largest score of each query, (ROWS,); -1 if the query sees no key.

    best, best_tile: the largest log2(p) of each slot, and its tile, from _with_tiles(). The scores of the
    keys of the best slot are computed again, to find which of them has the largest one.
    """
    if HALVES:
        return _key_of_half(best, best_tile, best_first, ROWS, COLUMNS)
    SLOTS: tl.constexpr = 32 if COLUMNS == 128 else COLUMNS // 2
    slots = tl.arange(0, SLOTS)
    best, best_tile = tl.reshape(best, [SLOTS, ROWS]), tl.reshape(best_tile, [SLOTS, ROWS])
    largest = tl.max(best, 0)
    first_keys = best_tile * COLUMNS + (slots // 8 * 16 + slots % 8)[:, None]
    first_key = tl.min(tl.where(best == largest[None, :], first_keys, NO_KEY), 0)
    rows, channels = row + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    queries_RD = tl.load(  # again, which takes fewer registers than to keep them
        query + rows.to(tl.int64)[:, None] * query_row + channels[None, :],
        mask=(rows < queries)[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip
    highest, chosen = tl.full([ROWS], HIDDEN, tl.float32), tl.full([ROWS], -1, tl.int32)
    for part in tl.static_range(COLUMNS // SLOTS):
        columns = first_key + part % 2 * 8 + part // 2 * 64
        inside = (columns < end) & (largest > HIDDEN)
        keys_RD = tl.load(
            key + columns.to(tl.int64)[:, None] * key_row + channels[None, :],
            mask=inside[:, None] & (channels < width)[None, :], other=0.0,
        )  # fmt: skip
        logs = log_weights(
            row_products(queries_RD, keys_RD, PRECISION), level, columns, rows, scale, cap, bias_scale,
            bias, bias_row, bias_column, queries, end, CAP, BIAS,
        )  # fmt: skip
        logs = hide(
            logs, columns, rows, start, low, high, table, document_of_query, document_of_key, queries, end,
            table_row, table_column, LEFT, DOCUMENTS, TABLE,
        )  # fmt: skip
        better = inside & (logs > highest)
        highest, chosen = tl.where(better, logs, highest), tl.where(better, columns, chosen)
    return chosen.to(tl.int64)


@triton.jit
def _with_queries(
    query, key, block, block_row, block_column, lse, bias, table, mass, pooled, document_of_query,
    document_of_key, row, start, left, right, scale, cap, bias_scale, unit, nan_units, queries, end, width,
    query_row, key_row, pooled_step, bias_row, bias_column, table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr,
    BIAS: tl.constexpr, TABLE: tl.constexpr, ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr,
    MAXIMA: tl.constexpr, MASS: tl.constexpr, POOLED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, HALVES: tl.constexpr,
    QUADS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Load the queries row, ..., row + ROWS - 1, and process all tiles of keys that they see.

    Returns total, best, best_tile and best_first, see _with_tiles(), and level, low and high of the queries.
    """
    SLOTS: tl.constexpr = 32 if COLUMNS == 128 else COLUMNS // 2
    if MASS and QUADS:
        _begin_quads(128)
    rows = row + tl.arange(0, ROWS)
    queries_RD, level, low, high = load_queries(
        query, lse, rows, start, left, right, queries, end, width, query_row, RIGHT, WIDTH
    )
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, DOCUMENTS or TABLE, ROWS, COLUMNS
    )
    total = tl.zeros([SLOTS // 8, 8, ROWS], tl.float32)
    best = tl.full([SLOTS // 8, 8, ROWS], HIDDEN, tl.float32)
    best_tile, best_first = tl.zeros([SLOTS // 8, 8, ROWS], tl.int32), best
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        first_tile, last_tile = first, full_first
        if part == 1:
            first_tile, last_tile = full_first, full_last
        if part == 2:
            first_tile, last_tile = full_last, last
        if (part == 0 and LEFT) or (part == 1 and not (DOCUMENTS or TABLE)) or part == 2:
            total, best, best_tile, best_first = _with_tiles(
                total, best, best_tile, best_first, first_tile, last_tile, row, queries_RD, level, low, high,
                key, block, block_row, block_column, mass, pooled, bias, table, document_of_query,
                document_of_key, start, scale, cap, bias_scale, unit, nan_units, queries, end, width, key_row,
                pooled_step, bias_row, bias_column, table_row, table_column, LEFT, DOCUMENTS, CAP, BIAS,
                TABLE, ENTROPY, ALIGNMENT, MAXIMA, MASS, POOLED, part != 1, ROWS, COLUMNS, WIDTH, GROUPS,
                BLOCKS, WHOLE, TMA, PRECISION, HALVES, QUADS, ASSEMBLY,
            )  # fmt: skip
    return total, best, best_tile, best_first, level, low, high


@triton.jit
def inner_look_kernel(
    query, key, block, lse, bias, table, entropy, alignment, mass, pooled, maxima, lengths,
    document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, cap, bias_scale,
    unit, nan_units, heads, groups, queries, keys, width, query_batch, query_head, query_row, key_batch,
    key_head, key_row, bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row,
    table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ENTROPY: tl.constexpr,
    ALIGNMENT: tl.constexpr, MAXIMA: tl.constexpr, MASS: tl.constexpr, POOLED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, EIGHTS: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, HALVES: tl.constexpr, QUADS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Compute the requested values for one tile of queries.

    Launch grid: (tiles of queries, B H). The score is bias_scale * (scale * q . k + bias), or
    bias_scale * (cap * tanh(scale * q . k / cap) + bias) if CAP.

    block: the keys as a tensor descriptor if TMA; otherwise any tensor, which is not read.
    lse: (B, H, T), with -inf for queries that see no key.
    bias: added to the scores. Strides are 0 in dimensions that are broadcast.
    table: a mask, nonzero where a query sees a key. Strides are 0 in dimensions that are broadcast.
    entropy, alignment: (B, H, T), receive the entropy, and the key with the largest score or -1.
    mass: (B, H, S), the column mass times `unit`, as integers; the caller has set it to 0. If the sum of the
        weights of a key is NaN, nan_units is added, which is more than the mass of all queries.
    pooled: (B, H, groups of queries, blocks of keys), receives sums of weights; the caller has set it to 0.
    maxima: (B, H, T, slots), receives log2 of the largest weight of each slot; not together with ALIGNMENT.
    GROUPS: number of groups of queries in a tile, each computed by its own warps.
    BLOCKS: number of blocks of at most 64 keys in a tile, for `pooled`.
    WHOLE: whether the width D is WIDTH, so that no channel has to be masked.
    TMA: load keys with the tensor memory accelerator of Hopper and later GPUs. Needs WHOLE.
    HALVES: keep which key of a slot has the largest weight, for slots of two keys. This takes more time for
        each tile. Otherwise, it is computed at the end, see _key_of_slot().
    QUADS: whether a tile is computed by one warp group of Hopper; see _add_mass(). Needs ASSEMBLY.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    both, query_tile = place_of_program(RIGHT)
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    both = both.to(tl.int64)
    query += batch * query_batch + head * query_head
    first_key = batch * key_batch + head // groups * key_head
    key += first_key
    block_row, block_column = 0, 0
    if TMA:
        block_row, block_column = (first_key // key_row).to(tl.int32), (first_key % key_row).to(tl.int32)
    bias += batch * bias_batch + head * bias_head
    table += batch * table_batch + head * table_head
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    row, key_blocks = query_tile * ROWS, tl.cdiv(keys, COLUMNS // BLOCKS)
    pooled += (both * tl.num_programs(0) + query_tile) * GROUPS * key_blocks
    total, best, best_tile, best_first, level, low, high = _with_queries(
        query, key, block, block_row, block_column, lse + both * queries, bias, table, mass + both * keys,
        pooled, document_of_query, document_of_key, row, start, left, right, scale, cap, bias_scale, unit,
        nan_units, queries, end, width, query_row, key_row, key_blocks, bias_row, bias_column, table_row,
        table_column, LEFT, RIGHT, DOCUMENTS, CAP, BIAS, TABLE, ENTROPY, ALIGNMENT, MAXIMA, MASS,
        POOLED, ROWS, COLUMNS, WIDTH, GROUPS, BLOCKS, WHOLE, TMA, PRECISION, HALVES, QUADS, ASSEMBLY,
    )  # fmt: skip
    rows = row + tl.arange(0, ROWS)
    SLOTS: tl.constexpr = 32 if COLUMNS == 128 else COLUMNS // 2
    if MAXIMA:
        at = (both * queries + rows)[None, :] * SLOTS + tl.arange(0, SLOTS)[:, None]
        tl.store(maxima + at, tl.reshape(best, [SLOTS, ROWS]), mask=(rows < queries)[None, :])
    if ENTROPY:
        sums = tl.sum(tl.reshape(total, [SLOTS, ROWS]), 0) * NEGATIVE_LN2
        tl.store(entropy + both * queries + rows, sums, mask=rows < queries)
    if ALIGNMENT:
        chosen = _key_of_slot(
            best, best_tile, best_first, row, query, level, low, high, key, bias, table, document_of_query,
            document_of_key, start, scale, cap, bias_scale, queries, end, width, query_row, key_row, bias_row,
            bias_column, table_row, table_column, LEFT, DOCUMENTS, CAP, BIAS, TABLE, ROWS, COLUMNS, WIDTH,
            PRECISION, HALVES,
        )  # fmt: skip
        tl.store(alignment + both * queries + rows, chosen, mask=rows < queries)


@triton.jit
def inner_mass_kernel(units, mass, count, unit, nan_units, BLOCK: tl.constexpr):
    """Convert the column mass from integers, `units`, to float32, `mass`: NaN if nan_units was added.

    Launch grid: (blocks of BLOCK elements,). count: number of elements. unit: see inner_look_kernel.
    """
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.load(units + places, mask=places < count, other=0).to(tl.float32)
    sums = tl.where(sums >= nan_units, float("nan"), sums / unit)
    tl.store(mass + places, sums, mask=places < count)
