# mypy: disable-error-code="no-untyped-def"
"""Parts of the kernels for inner-product attention: which tiles a mask hides, and the mask of one tile.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.mask import visible

__all__ = ["key_tiles", "load_rows", "query_tiles", "seen_pairs", "used_keys"]


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
