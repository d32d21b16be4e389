# mypy: disable-error-code="no-untyped-def"
"""Masks in the kernels for inner products: the mask of one tile, and lists of the tiles that are visible.

*Bool tensors.* A bool tensor often hides many tiles of scores as a whole, and leaves others visible as a
whole. inner_table_kernel reads it once. It packs 32 keys to a word, and writes a record for each tile of
queries:

    the number of tiles of keys that are visible as a whole, and of those that are partly visible
    the indices of the former, from the front, and of the latter, from the back
    the keys that some query of the tile sees, as words

The attention kernels then skip hidden tiles, and read the words only in partly visible tiles.
inner_turned_kernel lists the tiles of queries for each tile of keys, from the words.

*Documents.* inner_documents_kernel reads the document ids once for each tile, before the attention kernels.
It finds the first and the last key that some query of the tile can see. In packed sequences, most tiles of
queries lie in one document, whose keys are adjacent. For such a tile, the attention kernels read these keys
as if they were the whole sequence, without document ids. For the other tiles, they compare the ids in this
range.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.mask import visible

__all__ = [
    "DocumentRanges",
    "Listing",
    "inner_documents_kernel",
    "inner_table_kernel",
    "inner_turned_kernel",
    "key_tiles",
    "listed_tiles",
    "load_rows",
    "only_seen",
    "seen_pairs",
    "tiles_of_keys",
    "tiles_of_queries",
    "used_bits",
    "used_keys",
]


@triton.jit
def key_tiles(
    row, queries, end, start, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, ANY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return which tiles of keys the queries row, ..., row + ROWS - 1 see, as four indices of tiles.

    They are first, full_first, full_last and last. Keys outside the tiles `first` to last - 1 are hidden. In
    the tiles `full_first` to full_last - 1, all keys are visible to all these queries.

    end: number of keys that are not padding.
    ANY: True if the mask (documents or a bool table) can hide keys in any tile. Then no tile is wholly
        visible: full_first = full_last = first.
    """
    first, full_first, full_last, last = 0, 0, end // COLUMNS, tl.cdiv(end, COLUMNS)
    if LEFT:
        first = tl.maximum(row + start - left, 0) // COLUMNS
        full_first = tl.cdiv(tl.maximum(row + ROWS - 1 + start - left, 0), COLUMNS)
    if RIGHT:
        beyond = tl.minimum(row + ROWS, queries) + start + right
        last = tl.minimum(last, tl.cdiv(tl.maximum(beyond, 0), COLUMNS))
        full_last = tl.minimum(full_last, tl.maximum(row + start + right + 1, 0) // COLUMNS)
    last = tl.maximum(last, first)
    if ANY:
        full_first, full_last = first, first
    full_first = tl.minimum(tl.maximum(full_first, first), last)
    full_last = tl.minimum(tl.maximum(full_last, full_first), last)
    return first, full_first, full_last, last


@triton.jit
def query_tiles(
    column, queries, end, start, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return (first, last): only the queries of the tiles `first` to last - 1 see a key of this tile.

    The keys are column, ..., column + COLUMNS - 1. end: number of keys that are not padding.
    """
    first, last = 0, tl.cdiv(queries, ROWS)
    if RIGHT:
        first = tl.maximum(column - right - start, 0) // ROWS
    if LEFT:
        beyond = tl.minimum(column + COLUMNS, end) + left - start
        last = tl.minimum(last, tl.cdiv(tl.maximum(beyond, 0), ROWS))
    return first, tl.where(column < end, tl.maximum(last, first), first)


@triton.jit
def seen_pairs(
    rows, columns, queries, end, start, left, right, document_of_query, document_of_key, table, table_row,
    table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
    WHOLE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Return the mask of a tile, (ROWS, COLUMNS): True where the query attends to the key.

    table: a mask, nonzero where a query sees a key. Its strides are 0 in dimensions that are broadcast.
    WHOLE: whether the keys are whole tiles, so that keys of the table are loaded without a mask, which is
        faster.
    TURNED: whether keys stand in the place of queries, for a tile (COLUMNS, ROWS).
    """
    seen = visible(
        rows, columns, queries, end, start, left, right, document_of_query, document_of_key, LEFT, RIGHT,
        DOCUMENTS,
    )  # fmt: skip
    if TABLE:
        at = rows.to(tl.int64)[:, None] * table_row + columns.to(tl.int64)[None, :] * table_column
        if WHOLE and TURNED:
            inside = (rows >= 0)[:, None] & (columns < end)[None, :]
        elif WHOLE:
            inside = (rows < queries)[:, None] & (columns >= 0)[None, :]
        else:
            inside = (rows < queries)[:, None] & (columns < end)[None, :]
        seen = seen & (tl.load(table + at, mask=inside, other=0) != 0)
    return seen


@triton.jit
def used_keys(
    seen_RC, columns, first, last, end, start, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, REDUCE: tl.constexpr,
):  # fmt: skip
    """Return which keys of a tile some query of the tile may see, (COLUMNS,); others are not loaded.

    seen_RC: the mask of the tile. first, last: the first and the last query of the tile.
    REDUCE: whether the mask must be read. If not, it hides keys by their position only.
    """
    if REDUCE:
        return tl.max(seen_RC.to(tl.int32), 0) > 0
    used_C = columns < end
    if LEFT:
        used_C = used_C & (columns >= first + start - left)
    if RIGHT:
        used_C = used_C & (columns <= last + start + right)
    return used_C


@triton.jit
def load_rows(tensor, rows, row_step, inside, width, WIDTH: tl.constexpr):
    """Load rows of a tensor (N, width), with 0 where `inside` is False and beyond the width."""
    channels = tl.arange(0, WIDTH)
    return tl.load(
        tensor + rows.to(tl.int64)[:, None] * row_step + channels[None, :],
        mask=inside[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip


TABLE_BLOCK = 1 << 15
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
    PRECISION: see launch.precision_of(). In the interpreter, no inline assembly is used.
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
        most = max(2, TABLE_BLOCK // (rows * columns))
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


DOCUMENT_BLOCK = 4096
"""Number of document ids that a program loads at once."""


@triton.jit(do_not_specialize=("own_start", "other_start"))
def inner_documents_kernel(
    own_ids, other_ids, ranges, own_start, other_start, own_step, other_step, owns, others, tiles,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the range of positions that one tile sees.

    own_ids, other_ids: document ids of queries and keys, or of keys and queries, (B or 1, N).
    ranges: int32, (B or 1, tiles, 3), receives the first position, the position after the last one, and 1 if
        the tile sees all positions between them because it lies in one document, otherwise 0.
    own_start, other_start: the position of the first id.
    own_step, other_step: strides along B. owns, others: number of positions.
    OWN: size of the tiles.
    Launch grid: (tiles * batch size of the ids,).
    """
    batch, own = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * OWN + tl.arange(0, OWN)
    ids = own_ids + batch * own_step + own_start
    least = tl.min(tl.load(ids + own, mask=own < owns, other=9223372036854775807), 0)
    most = tl.max(tl.load(ids + own, mask=own < owns, other=-9223372036854775808), 0)
    ids = other_ids + batch * other_step + other_start
    begin, end, count = others, 0, 0
    for first in range(0, others, BLOCK):
        other = first + tl.arange(0, BLOCK)
        id_of_other = tl.load(ids + other, mask=other < others, other=0)
        seen = (other < others) & (id_of_other >= least) & (id_of_other <= most)
        begin = tl.minimum(begin, tl.min(tl.where(seen, other, others), 0))
        end = tl.maximum(end, tl.max(tl.where(seen, other + 1, 0), 0))
        count += tl.sum(seen.to(tl.int32), 0)
    begin = tl.minimum(begin, end)  # both are 0 if nothing is visible
    ranges += tl.program_id(0).to(tl.int64) * 3
    tl.store(ranges, begin)
    tl.store(ranges + 1, end)
    tl.store(ranges + 2, ((least == most) & (count == end - begin)).to(tl.int32))


@triton.jit
def load_range(ranges, step, batch, tile, ends):
    """Return the range of a tile: the first position, the position after the last one, and `single`.

    ends: number of positions that are not padding. single: whether the tile lies in one document, and the
    range contains only this document.
    """
    at = ranges + batch * step + tile * 3
    first = tl.load(at)
    return first, tl.maximum(tl.minimum(tl.load(at + 1), ends), first), tl.load(at + 2) != 0


@triton.jit
def tiles_of_keys(
    lists, lists_batch, batch, row, queries, end, start, left, right, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, ANY: tl.constexpr, RANGED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return which tiles of keys a tile of queries reads, see key_tiles(), also if the mask has documents.

    The keys of a single document are read as if they were the whole sequence. If the queries have several
    documents, all tiles of their range compare document ids.

    lists, lists_batch: if RANGED, the ranges of inner_documents_kernel, and their stride along B.

    Returns the first key to read; `start` and `end` relative to it; the four indices of key_tiles(); and the
    first and the last tile that compare ids.
    """
    shift, compared_first, compared_last = 0, 0, 0
    if RANGED:
        begin, stop, single = load_range(lists, lists_batch, batch, row // ROWS, end)
        shift = tl.where(single, begin, 0)
        start, end = start - shift, tl.where(single, stop - begin, end)
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, ANY, ROWS, COLUMNS
    )
    if RANGED:
        compared_first = tl.maximum(first, begin // COLUMNS)
        compared_last = tl.where(single, compared_first, tl.minimum(last, tl.cdiv(stop, COLUMNS)))
        full_first, full_last = tl.where(single, full_first, first), tl.where(single, full_last, first)
        last = tl.where(single, last, first)
    return shift, start, end, first, full_first, full_last, last, compared_first, compared_last


@triton.jit
def tiles_of_queries(
    lists, lists_batch, batch, column, queries, end, start, left, right, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, RANGED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return which tiles of queries see a tile of keys, see query_tiles(), also if the mask has documents.

    The queries of a single document are read as if they were all queries; see tiles_of_keys().

    Returns the first query to read; `start` and `queries` relative to it; the two indices of query_tiles();
    and the first and the last tile that compare ids.
    """
    shift, compared_first, compared_last = 0, 0, 0
    if RANGED:
        begin, stop, single = load_range(lists, lists_batch, batch, column // COLUMNS, queries)
        shift = tl.where(single, begin, 0)
        start, queries = start + shift, tl.where(single, stop - begin, queries)
    first, last = query_tiles(column, queries, end, start, left, right, LEFT, RIGHT, ROWS, COLUMNS)
    if RANGED:
        compared_first = tl.maximum(first, begin // ROWS)
        compared_last = tl.where(single, compared_first, tl.minimum(last, tl.cdiv(stop, ROWS)))
        last = tl.where(single, last, first)
    return shift, start, queries, first, last, compared_first, compared_last


class DocumentRanges:
    """A launch of inner_documents_kernel, for document ids of one shape.

    steps: the strides of lists that the attention kernels get: that along B, 0 if all sequences share the
        ranges, and three zeros.
    """

    def __init__(self, ids: tuple[Tensor, Tensor], sizes: tuple[int, int], tile: int, turned: bool):
        """Prepare for document ids of T queries and S keys; sizes: T and S.

        tile: number of queries of a tile, or of keys if `turned`.
        turned: whether to find the queries that see a tile of keys.
        """
        (own, other), (owns, others) = ids, sizes
        if turned:
            own, other, owns, others = other, own, others, owns
        self.turned, self.constants = turned, (tile, DOCUMENT_BLOCK)
        batch, tiles = max(own.shape[0], other.shape[0]), -(-owns // tile)
        steps = (0 if each.shape[0] == 1 else each.stride(0) for each in (own, other))
        self.numbers = (*steps, owns, others, tiles)
        self.shape, self.grid = (batch, tiles, 3), (batch * tiles, 1, 1)
        self.steps = (3 * tiles if batch > 1 else 0, 0, 0, 0)

    def run(self, of_query: Tensor, of_key: Tensor, start: int) -> Tensor:
        """Return the ranges, (B or 1, tiles, 3). start: position of the first query."""
        ranges = torch.empty(self.shape, dtype=torch.int32, device=of_query.device)
        ids, starts = (of_query, of_key), (start, 0)
        if self.turned:
            ids, starts = (of_key, of_query), (0, start)
        kernel: Any = inner_documents_kernel
        kernel[self.grid](*ids, ranges, *starts, *self.numbers, *self.constants, num_warps=8)
        return ranges
