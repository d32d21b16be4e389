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
- The column mass is a sum over queries. Most of it is a sum inside a thread. Programs add their sums by
  integer atomics, as multiples of 1 / unit: integers have the same sum in any order, so results are
  reproducible bit by bit.

inner_look is run_inner_look() as a custom operator, which torch.compile does not trace into.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from regard.kernels import interpreting, on_device
from regard.kernels.additive.forward import Sight
from regard.kernels.launch import in_eights, in_rows, precision_of, steps
from regard.kernels.looking import ARGUMENTS, Weights
from regard.kernels.looking.scores import (
    HIDDEN,
    NO_KEY,
    hide,
    load_queries,
    log_weights,
    place_of_program,
    tile_logs,
)
from regard.kernels.mask import end_of, key_tiles
from regard.kernels.matrix_product import row_products

__all__ = [
    "Tiles",
    "broadcast_steps",
    "inner_look",
    "inner_look_kernel",
    "inner_mass_kernel",
    "run_inner_look",
    "tiles_of",
]

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
def _add_mass(sums, mass, tile, end, unit, nan_units, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):
    """Add the column mass of a tile, (COLUMNS, GROUPS), to `mass`, (S,), by integer atomics."""
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
    ENTROPY: tl.constexpr, ALIGNMENT: tl.constexpr, MASS: tl.constexpr,
    POOLED: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, HALVES: tl.constexpr, ASSEMBLY: tl.constexpr,
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
                    _add_mass(sums, mass, tile, end, unit, nan_units, COLUMNS, GROUPS)
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
    MASS: tl.constexpr, POOLED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, HALVES: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Load the queries row, ..., row + ROWS - 1, and process all tiles of keys that they see.

    Returns total, best, best_tile and best_first, see _with_tiles(), and level, low and high of the queries.
    """
    SLOTS: tl.constexpr = 32 if COLUMNS == 128 else COLUMNS // 2
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
                TABLE, ENTROPY, ALIGNMENT, MASS, POOLED, part != 1, ROWS, COLUMNS, WIDTH, GROUPS,
                BLOCKS, WHOLE, TMA, PRECISION, HALVES, ASSEMBLY,
            )  # fmt: skip
    return total, best, best_tile, best_first, level, low, high


@triton.jit
def inner_look_kernel(
    query, key, block, lse, bias, table, entropy, alignment, mass, pooled, lengths,
    document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, cap, bias_scale,
    unit, nan_units, heads, groups, queries, keys, width, query_batch, query_head, query_row, key_batch,
    key_head, key_row, bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row,
    table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, ENTROPY: tl.constexpr,
    ALIGNMENT: tl.constexpr, MASS: tl.constexpr, POOLED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, EIGHTS: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, HALVES: tl.constexpr, ASSEMBLY: tl.constexpr,
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
    GROUPS: number of groups of queries in a tile, each computed by its own warps.
    BLOCKS: number of blocks of at most 64 keys in a tile, for `pooled`.
    WHOLE: whether the width D is WIDTH, so that no channel has to be masked.
    TMA: load keys with the tensor memory accelerator of Hopper and later GPUs. Needs WHOLE.
    HALVES: keep which key of a slot has the largest weight, for slots of two keys. This takes more time for
        each tile. Otherwise, it is computed at the end, see _key_of_slot().
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
        table_column, LEFT, RIGHT, DOCUMENTS, CAP, BIAS, TABLE, ENTROPY, ALIGNMENT, MASS,
        POOLED, ROWS, COLUMNS, WIDTH, GROUPS, BLOCKS, WHOLE, TMA, PRECISION, HALVES, ASSEMBLY,
    )  # fmt: skip
    rows = row + tl.arange(0, ROWS)
    SLOTS: tl.constexpr = 32 if COLUMNS == 128 else COLUMNS // 2
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


class Tiles(NamedTuple):
    """Launch parameters of inner_look_kernel.

    rows, columns: number of queries and of keys in a tile.
    warps, stages: number of warps and of pipeline stages.
    groups: number of groups of queries in a tile; a group is computed by its own warps.
    registers: maximum number of registers per thread; None for no limit.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    groups: int = 1
    registers: int | None = None


BLOCK = 64
"""Number of keys of a block, for which the kernel returns the sum of the weights; fewer in a smaller tile."""

MASS_BLOCK = 1024
"""Number of elements of the column mass that one program converts."""

MOST_HEADS = 1 << 14
"""Maximum number B K of key heads for which a tensor descriptor is used."""


SHORT = 2048
"""Queries that see at most this many keys on average use the tiles for short sequences."""

HALVES = 4096
"""Up to this number of keys per query, the kernel keeps which key of a slot is the largest."""

TILES: dict[tuple[int, bool, bool], Tiles] = {
    (128, False, False): Tiles(64, 64, 4, 3),
    (128, False, True): Tiles(64, 64, 4, 3),
    (128, True, False): Tiles(64, 64, 4, 3, registers=168),
    (128, True, True): Tiles(64, 64, 4, 3, registers=168),
    (64, False, False): Tiles(64, 128, 4, 2, registers=128),
    (64, False, True): Tiles(64, 64, 4, 3, registers=128),
    (64, True, False): Tiles(64, 128, 4, 3, registers=168),
    (64, True, True): Tiles(64, 64, 4, 3, registers=128),
}
"""(largest head size, several looks at once, short sequences) -> launch parameters for 16-bit inputs, the
fastest of those measured on an H200."""


def tiles_of(width: int, dtype: torch.dtype, looks: int = 3, keys: int = SHORT + 1) -> Tiles:
    """Return the launch parameters for a head size, a dtype and a number of looks.

    keys: number of keys that a query sees on average.
    """
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2) if width > 64 else Tiles(64, 64, 4, 2)
    if width > 128:
        return Tiles(64, 64, 4, 2)
    return TILES[128 if width > 64 else 64, looks > 1, keys <= SHORT]


def run_inner_look(
    weights: Weights, entropy: bool, alignment: bool, mass: bool, pooled: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute entropy, alignment, column mass and pooled weights, each only if it is requested.

    pooled: the block size of the pooled weights, a multiple of the tile size; 0 if they are not requested.

    Returns entropy (B, H, T), alignment (B, H, T), column mass (B, H, S), and the sums of the weights in
    blocks of pooled x pooled; empty tensors if not computed.
    """
    (query, key, lse, bias, table), (scale, cap, bias_scale) = weights[:5], weights[11:]
    sight = Sight(*weights[5:11])
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    looks = entropy + alignment + mass + (pooled > 0)
    padded = max(16, 1 << (width - 1).bit_length())
    seen = keys if sight.right is None else keys // 2
    tiles = tiles_of(width, query.dtype, looks, seen)
    blocks, (unit, nan_units) = max(1, tiles.columns // BLOCK), _units(queries)
    results = _buffers(query, keys, tiles, (entropy, alignment, mass, pooled > 0))
    block = key_block(key, tiles) if width == padded and has_tma(query.device) else None
    with on_device(query):
        inner_look_kernel[(-(-queries // tiles.rows), batch * heads)](
            query, key, key if block is None else block, lse, query if bias is None else bias,
            query if table is None else table.view(torch.uint8), *results,
            **sight.whole(query), **steps("query", query), **steps("key", key),
            **broadcast_steps("bias", bias, query, keys), **broadcast_steps("table", table, query, keys),
            scale=scale, cap=cap, bias_scale=bias_scale, unit=unit, nan_units=nan_units,
            heads=heads, groups=heads // key_heads, queries=queries, keys=keys, width=width,
            CAP=cap > 0, BIAS=bias is not None, TABLE=table is not None,
            ENTROPY=entropy, ALIGNMENT=alignment, MASS=mass, POOLED=pooled > 0,
            ROWS=tiles.rows, COLUMNS=tiles.columns, WIDTH=padded, GROUPS=tiles.groups, BLOCKS=blocks,
            WHOLE=width == padded, EIGHTS=in_eights(query, key), TMA=block is not None,
            PRECISION=precision_of(query), ASSEMBLY=not interpreting(),
            HALVES=tiles.columns < 128 and seen <= HALVES,
            num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers,
        )  # fmt: skip
        entropy_BHT, alignment_BHT, units_BHS, blocks_BHNM = results
        mass_BHS = torch.empty_like(units_BHS, dtype=torch.float32)
        if mass:
            inner_mass_kernel[(-(-units_BHS.numel() // MASS_BLOCK),)](
                units_BHS, mass_BHS, units_BHS.numel(), unit, nan_units, BLOCK=MASS_BLOCK
            )
    pooled_BHNM = _pooled_blocks(blocks_BHNM, queries, pooled, tiles)
    return entropy_BHT, alignment_BHT, mass_BHS, pooled_BHNM


inner_look = torch.library.custom_op(
    "regard::inner_look",
    mutates_args=(),
    schema=f"({ARGUMENTS}, bool entropy, bool alignment, bool mass, SymInt pooled)"
    " -> (Tensor entropy, Tensor alignment, Tensor mass, Tensor pooled)",
)(lambda *arguments: run_inner_look(Weights(*arguments[:14]), *arguments[14:]))
"""run_inner_look() as an operator, which torch.compile does not trace into."""


@inner_look.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    entropy, alignment, mass, pooled = rest[-4:]
    sizes = query.shape[:3]
    return (
        query.new_empty(sizes if entropy else 0, dtype=torch.float32),
        query.new_empty(sizes if alignment else 0, dtype=torch.int64),
        query.new_empty((*query.shape[:2], key.shape[2]) if mass else 0, dtype=torch.float32),
        query.new_empty(
            (*query.shape[:2], *(-(-each // pooled) for each in (query.shape[2], key.shape[2])))
            if pooled
            else 0,
            dtype=torch.float32,
        ),
    )


def has_tma(device: torch.device) -> bool:
    """Whether the device has a tensor memory accelerator, which copies tiles to shared memory."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def key_block(key: Tensor, tiles: Tiles) -> Any:
    """Return a tensor descriptor of the keys, (B, K, S, D), with which a kernel loads tiles of keys.

    Returns None if it is not possible: see _matrix_size(); and each row must be aligned to 16 bytes.
    """
    size = _matrix_size(tuple(key.shape), tuple(key.stride()))
    if size is None or not in_eights(key) or key.element_size() != 2:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(key, list(size), [key.stride(2), 1], [tiles.columns, key.shape[3]])


@functools.cache
def _matrix_size(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the size of a matrix that contains the keys of every head as a block of S rows and D columns.

    A row of the matrix has the stride of a key. The element at the offset i has the row i // stride and the
    column i % stride. Returns None if the keys of a head are not such a block.

    >>> _matrix_size((2, 4, 10, 64), (2560, 640, 64, 1))  # all keys of a head, then the next head
    (80, 64)
    >>> _matrix_size((2, 4, 10, 64), (2560, 64, 256, 1))  # all heads of a key, then the next key
    (20, 256)
    """
    batch, heads, keys, width = shape
    stride = strides[2]
    if stride < width or batch * heads > MOST_HEADS:
        return None
    firsts = [each * strides[0] + head * strides[1] for each in range(batch) for head in range(heads)]
    columns = max(first % stride for first in firsts) + width
    rows = max(first // stride for first in firsts) + keys
    return (rows, columns) if columns <= stride and rows < 1 << 31 else None


def _buffers(query: Tensor, keys: int, tiles: Tiles, wanted: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that the kernel writes: entropy, alignment, column mass and sums of blocks.

    wanted: for each of the four, whether it is requested. The others are empty.
    """
    batch, heads, queries, _ = query.shape
    rows, columns = -(-queries // tiles.rows) * tiles.groups, -(-keys // min(tiles.columns, BLOCK))
    entropy, alignment, mass, pooled = wanted
    return (
        query.new_empty((batch, heads, queries) if entropy else 0, dtype=torch.float32),
        query.new_empty((batch, heads, queries) if alignment else 0, dtype=torch.int64),
        query.new_zeros((batch, heads, keys) if mass else 0, dtype=torch.int64),
        query.new_zeros((batch, heads, rows, columns) if pooled else 0, dtype=torch.float32),
    )


def _units(queries: int) -> tuple[float, float]:
    """Return unit and nan_units: the kernel adds the column mass as multiples of 1 / unit, in 64 bits.

    nan_units is added if a sum of weights is NaN. It is more than the mass of all queries, and it can be
    added once for every 32 queries without an overflow.

    >>> _units(1000) == (2.0**40, 2.0**51), _units(1 << 17) == (2.0**31, 2.0**49)
    (True, True)
    """
    bits = max(queries - 1, 1).bit_length()
    unit = 2.0 ** min(40, 65 - 2 * bits)
    return unit, unit * 2.0 ** (bits + 1)


def _pooled_blocks(blocks_BHNM: Tensor, queries: int, size: int, tiles: Tiles) -> Tensor:
    """Add the sums of neighbouring blocks that form one of size x size. If size is 0, change nothing."""
    if not size:
        return blocks_BHNM
    down, across = size * tiles.groups // tiles.rows, size // min(tiles.columns, BLOCK)
    rows, columns = blocks_BHNM.shape[-2:]
    padded = functional.pad(blocks_BHNM, (0, -columns % across, 0, -rows % down))
    pooled = padded.unflatten(-1, (-1, across)).sum(-1).unflatten(-2, (-1, down)).sum(-2)
    return pooled[:, :, : -(-queries // size)]  # the last tile can have groups without queries


def broadcast_steps(name: str, tensor: Tensor | None, query: Tensor, keys: int) -> dict[str, int]:
    """Broadcast a tensor to (B, H, T, S), and return its strides as keyword arguments of a kernel."""
    wide = None if tensor is None else tensor.expand(*query.shape[:3], keys)
    names = ("batch", "head", "row", "column")
    return {f"{name}_{each}": 0 if wide is None else wide.stride(at) for at, each in enumerate(names)}
