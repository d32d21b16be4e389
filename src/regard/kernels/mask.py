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

__all__ = ["end_of", "tile_is_seen", "visible"]


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
