# mypy: disable-error-code="no-untyped-def"
"""Bool tensors as masks: packed to bits, with lists of visible tiles, for the kernels of inner products.

A bool tensor often hides many tiles of scores as a whole, and leaves others visible as a whole.
inner_table_kernel reads it once. It packs 32 keys to a word, and writes a record for each tile of queries:

    the number of tiles of keys that are visible as a whole, and of those that are partly visible
    the indices of the former, from the front, and of the latter, from the back
    the keys that some query of the tile sees, as words

The attention kernels then skip hidden tiles, and read the words only in partly visible tiles.
inner_turned_kernel lists the tiles of queries for each tile of keys, from the words.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Listing", "inner_table_kernel", "inner_turned_kernel", "listed_tiles", "only_seen", "used_bits"]

BLOCK = 1 << 15
"""Number of elements of the bool tensor that a program loads at once."""


@triton.jit
def _store_record(record, tiles, some, all_, full, partial, others):
    """Append tiles to a record: those that are visible as a whole (all_), and those in part.

    tiles: indices of tiles. some, all_: 1 if some or all pairs of a tile are visible, otherwise 0.
    full, partial: the numbers of tiles of both kinds so far. Returns the new numbers.
    """
    all_ = all_ * some  # a tile beyond the last query has no pairs
    some = some - all_
    tl.store(record + 2 + full + tl.cumsum(all_, 0) - 1, tiles, mask=all_ > 0)
    tl.store(record + 2 + others - partial - tl.cumsum(some, 0), tiles, mask=some > 0)
    return full + tl.sum(all_, 0), partial + tl.sum(some, 0)


@triton.jit
def inner_table_kernel(
    table, found, queries, keys, heads, table_batch, table_head, table_row, table_column, owns, others,
    words, records, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Pack the rows of one tile of queries, and write its record.

    table: the mask, nonzero where a query sees a key, (B or 1, H or 1, T, S) by its strides.
    found: int32; receives the words, (B or 1, H or 1, T, words), and from the element `records` on the
        records, (B or 1, H or 1, owns, 2 + others + words).
    heads: number of heads of the table.
    owns, others: number of tiles of queries and of keys.
    TILES: number of tiles of keys that are loaded at once.
    Launch grid: (owns * B H of the table,).
    """
    WORDS: tl.constexpr = TILES * COLUMNS // 32
    own, both = tl.program_id(0) % owns, (tl.program_id(0) // owns).to(tl.int64)
    table += both // heads * table_batch + both % heads * table_head
    record = found + records + tl.program_id(0).to(tl.int64) * (2 + others + words)
    rows, bit = own * ROWS + tl.arange(0, ROWS), tl.arange(0, 32)
    full, partial = 0, 0
    for first in range(0, others, TILES):
        columns = first * COLUMNS + tl.arange(0, TILES * COLUMNS)
        at = rows.to(tl.int64)[:, None] * table_row + columns.to(tl.int64)[None, :] * table_column
        inside = (rows < queries)[:, None] & (columns < keys)[None, :]
        seen = (tl.load(table + at, mask=inside, other=0) != 0).to(tl.int32)
        word = first * COLUMNS // 32 + tl.arange(0, WORDS)
        packed = tl.sum(tl.reshape(seen, [ROWS, WORDS, 32]) << bit[None, None, :], 2)
        at = found + (both * queries + rows)[:, None] * words + word[None, :]
        tl.store(at, packed, mask=(rows < queries)[:, None] & (word < words)[None, :])
        used = tl.max(seen, 0)
        packed = tl.sum(tl.reshape(used, [WORDS, 32]) << bit[None, :], 1)
        tl.store(record + 2 + others + word, packed, mask=word < words)
        # Rows beyond the last query do not matter. Columns beyond the last key must be masked.
        all_ = tl.min(tl.where((rows < queries)[:, None], seen, 1), 0)
        some, all_ = tl.reshape(used, [TILES, COLUMNS]), tl.reshape(all_, [TILES, COLUMNS])
        full, partial = _store_record(
            record, first + tl.arange(0, TILES), tl.max(some, 1), tl.min(all_, 1), full, partial, others
        )
    tl.store(record, full)
    tl.store(record + 1, partial)


@triton.jit
def inner_turned_kernel(
    packed, lists, queries, owns, others, words,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """List the tiles of queries for one tile of keys.

    packed: the words of inner_table_kernel. lists: receives records without words, (B or 1, H or 1, owns,
        2 + others).
    owns, others: number of tiles of keys and of queries. TILES: number of the latter that are loaded at once.
    Launch grid: (owns * B H of the table,).
    """
    WORDS: tl.constexpr = COLUMNS // 32 if COLUMNS > 32 else 1
    own, both = tl.program_id(0) % owns, (tl.program_id(0) // owns).to(tl.int64)
    record = lists + tl.program_id(0).to(tl.int64) * (2 + others)
    bits = tl.full([], -1, tl.int32)
    if COLUMNS < 32:
        bits = ((1 << COLUMNS) - 1) << (own * COLUMNS % 32)
    word = own * COLUMNS // 32 + tl.arange(0, WORDS)
    full, partial = 0, 0
    for first in range(0, others, TILES):
        rows = first * ROWS + tl.arange(0, TILES * ROWS)
        at = packed + (both * queries + rows)[:, None] * words + word[None, :]
        seen = tl.load(at, mask=(rows < queries)[:, None] & (word < words)[None, :], other=0) & bits
        some = (seen != 0).to(tl.int32)
        all_ = tl.where((rows < queries)[:, None], (seen == bits).to(tl.int32), 1)
        some, all_ = tl.reshape(some, [TILES, ROWS * WORDS]), tl.reshape(all_, [TILES, ROWS * WORDS])
        full, partial = _store_record(
            record, first + tl.arange(0, TILES), tl.max(some, 1), tl.min(all_, 1), full, partial, others
        )
    tl.store(record, full)
    tl.store(record + 1, partial)


@triton.jit
def listed_tiles(record, others):
    """Return the pointer to the indices of a record, and where its wholly and partly visible tiles are.

    The indices 0 to full - 1 are those of the wholly visible tiles; first to others - 1, of the others.

    Returns the pointer, full and first.
    """
    return record + 2, tl.load(record), others - tl.load(record + 1)


@triton.jit
def only_seen(
    x, packed, words, rows, column, queries,
    COLUMNS: tl.constexpr, TURNED: tl.constexpr, LOWEST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return x where a query sees a key. Elsewhere, the result is -inf if LOWEST, otherwise 0.

    x: float32, (ROWS, COLUMNS), or (COLUMNS, ROWS) if TURNED.
    packed: the words of a head, with `words` words for each query.
    rows: the queries of the tile. column: the first key of the tile.
    COLUMNS: number of keys of the tile, at most 64.
    PRECISION: see launch.precision(). In the interpreter, no inline assembly is used.
    """
    at = packed + rows.to(tl.int64) * words + column // 32
    low = tl.load(at, mask=rows < queries, other=0)
    high = low
    if COLUMNS == 64:
        high = tl.load(at + 1, mask=rows < queries, other=0)
    local = tl.arange(0, COLUMNS)
    if COLUMNS < 32:
        local += column % 32
    if TURNED:
        word = tl.where((local < 32)[:, None], low[None, :], high[None, :])
        local = local[:, None]
    else:
        word = tl.where((local < 32)[None, :], low[:, None], high[:, None])
        local = local[None, :]
    if PRECISION == "ieee" or PRECISION == "widened":
        return tl.where(((word >> (local % 32)) & 1) != 0, x, float("-inf") if LOWEST else 0.0)
    # The bit of the key becomes the first bit of a byte. prmt fills 32 bits with it. In a thread, `local % 8`
    # has two values, so there are few shifts. Comparisons would take more instructions, because a thread has
    # only seven predicates.
    word = word << (7 - local % 8)
    select = 0x8888 + 0x1111 * (local // 8 % 4) + word * 0
    if LOWEST:
        found = tl.inline_asm_elementwise(
            "{.reg .b32 m; prmt.b32 m, $2, 0, $3; lop3.b32 $0, $1, m, 0xff800000, 0xe2;}", "=r,r,r,r",
            [x.to(tl.int32, bitcast=True), word, select], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        found = tl.inline_asm_elementwise(
            "{.reg .b32 m; prmt.b32 m, $2, 0, $3; and.b32 $0, $1, m;}", "=r,r,r,r",
            [x.to(tl.int32, bitcast=True), word, select], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return found.to(tl.float32, bitcast=True)


@triton.jit
def used_bits(used, columns, column, COLUMNS: tl.constexpr):
    """Return which keys of a tile some query of the tile of queries sees, (COLUMNS,).

    used: pointer to the words of the record. columns: the keys. column: the first key.
    """
    word = tl.load(used + column // 32)
    if COLUMNS == 64:
        word = tl.where(columns - column < 32, word, tl.load(used + column // 32 + 1))
    return ((word >> (columns % 32)) & 1) != 0


class Listing:
    """A launch of inner_table_kernel or inner_turned_kernel, for masks of one shape.

    steps: strides of the records along B and H, 0 if the mask is broadcast there; the number of listed tiles;
        and the element at which the records begin.
    word_steps: strides of the words along B, H and T.
    """

    def __init__(self, table: Tensor, sizes: tuple[int, int], rows: int, columns: int, turned: bool):
        """Prepare for a mask (B or 1, H or 1, T or 1, S or 1) with sizes T and S, in tiles rows x columns.

        turned: whether to list the tiles of queries for each tile of keys, from the words of another Listing.
        """
        queries, keys = sizes
        batch, heads = table.shape[:2]
        words, tables = -(-keys // 64) * 2, batch * heads
        owns, others = -(-queries // rows), -(-keys // columns)
        if turned:
            owns, others = others, owns
        steps = (step if size > 1 else 0 for step, size in zip(table.stride(), table.shape, strict=True))
        most = max(2, BLOCK // (rows * columns))
        self.constants = (rows, columns, min(1 << (others - 1).bit_length(), most))
        if turned:
            self.kernel, records, size = inner_turned_kernel, 0, 2 + others
            self.numbers: tuple[int, ...] = (queries, owns, others, words)
        else:
            self.kernel, records, size = inner_table_kernel, tables * queries * words, 2 + others + words
            self.numbers = (queries, keys, heads, *steps, owns, others, words, records)
        self.size, self.grid = records + tables * owns * size, (tables * owns, 1, 1)
        self.steps = (*_broadcast_steps(batch, heads, owns * size), others, records)
        self.word_steps = (*_broadcast_steps(batch, heads, queries * words), words)

    def run(self, source: Tensor) -> Tensor:
        """Return words and records. source: the bool tensor; if turned, the words of another Listing."""
        found = torch.empty(self.size, dtype=torch.int32, device=source.device)
        source = source.view(torch.uint8) if source.dtype == torch.bool else source
        kernel: Any = self.kernel
        kernel[self.grid](source, found, *self.numbers, *self.constants, num_warps=8)
        return found


def _broadcast_steps(batch: int, heads: int, step: int) -> tuple[int, int]:
    """Return the strides along B and H of a tensor (B, H, step), 0 for a size of 1."""
    return step * heads if batch > 1 else 0, step if heads > 1 else 0
