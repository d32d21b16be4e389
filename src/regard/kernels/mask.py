# mypy: disable-error-code="no-untyped-def"
"""Masks inside a kernel: lengths, window and documents. A causal mask is a window that ends at the query.

Arguments:

row, column         the first query row and the first key of a tile
rows, columns       the query rows and the keys of a tile
queries             the number of query rows (or the end of the current chunk of rows)
high                the number of keys that are not padding, from end_of()
start               the position of row 0: row i has the position i + start
left, right         the window: the query at position p attends to keys p - left to p + right
LEFT, RIGHT         whether the window is limited on this side
document_of_query   the document id of each query position; likewise document_of_key

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["end_of", "key_tiles", "query_tiles", "tile_is_seen", "visible"]


@triton.jit
def end_of(lengths, length_step, batch, keys, LENGTHS: tl.constexpr):
    """Return the number of keys of a sequence that are not padding: all keys if LENGTHS is False."""
    return tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys


@triton.jit
def tile_is_seen(
    row, column, queries, high, start, left, right, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """Whether lengths and window leave at least one score of the tile visible. Documents are not considered.

    All kernels skip the same tiles, so no kernel loads a tile that another kernel has not written.
    """
    seen = (row < queries) & (column < high)
    last = tl.minimum(row + ROWS, queries) - 1 + start
    if LEFT:
        seen = seen & (column + COLUMNS - 1 >= row + start - left)
    if RIGHT:
        seen = seen & (column <= last + right)
    return seen


@triton.jit
def visible(
    rows, columns, queries, high, start, left, right, document_of_query, document_of_key,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
):  # fmt: skip
    """Return the mask of a tile, (ROWS, COLUMNS): True where the query attends to the key."""
    position = rows + start
    seen = (rows < queries)[:, None] & (columns < high)[None, :]
    if LEFT:
        seen = seen & (columns[None, :] >= position[:, None] - left)
    if RIGHT:
        seen = seen & (columns[None, :] <= position[:, None] + right)
    if DOCUMENTS:
        of_query = tl.load(document_of_query + position, mask=rows < queries, other=-1)
        of_key = tl.load(document_of_key + columns, mask=columns < high, other=-1)
        seen = seen & (of_query[:, None] == of_key[None, :])
    return seen


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
