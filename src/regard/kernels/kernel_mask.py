# mypy: disable-error-code="no-untyped-def"
"""Masks inside a kernel: by lengths, window (causal is a window that ends at the query) and documents.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["end_of", "tile_is_seen", "visible"]


@triton.jit
def end_of(lengths, length_step, batch, keys, LENGTHS: tl.constexpr):
    """Number of keys of a sequence that are not padding."""
    return tl.minimum(keys, tl.load(lengths + batch * length_step)).to(tl.int32) if LENGTHS else keys


@triton.jit
def tile_is_seen(
    row, column, queries, high, start, left, right, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """Whether lengths and window leave any score of the tile at (row, column) unmasked.

    All kernels skip the same tiles, so none loads what another has not written.
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
    """The mask of a tile, (rows, columns): True where the query attends to the key. high: number of keys."""
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
