# mypy: disable-error-code="no-untyped-def"
"""Which tiles of scores a bool tensor hides: lists of tiles for the kernels of inner-product attention.

A bool tensor often hides many tiles as a whole, and leaves others visible as a whole. inner_table_kernel
reads it once and writes, for each tile of queries, the tiles of keys to process (or for each tile of keys,
those of queries). The attention kernels then skip hidden tiles, and read the mask only in tiles that are
partly visible.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Listing", "inner_table_kernel", "listed_tiles"]

BLOCK = 1 << 15
"""Number of elements of the bool tensor that a program of inner_table_kernel loads at once."""


@triton.jit
def inner_table_kernel(
    table, lists, queries, keys, heads, table_batch, table_head, table_row, table_column, owns, others,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """List the tiles of keys for one tile of queries; if TURNED, the tiles of queries for one tile of keys.

    table: the mask, nonzero where a query sees a key, (B or 1, H or 1, T, S) by its strides.
    lists: receives the lists, int32, (B or 1, H or 1, own tiles, 2 + others). A list begins with the number
        of wholly visible tiles and the number of partly visible tiles. The indices of the former follow;
        those of the latter are at the end of the list.
    heads: number of heads of the table.
    owns, others: number of tiles that have a list, and number of tiles in the listed dimension.
    TILES: number of tiles that are loaded at once.
    Launch grid: (own tiles * B H of the table,).
    """
    own, both = tl.program_id(0) % owns, (tl.program_id(0) // owns).to(tl.int64)
    table += both // heads * table_batch + both % heads * table_head
    lists += tl.program_id(0).to(tl.int64) * (2 + others)
    indices = lists + 2
    full, partial = 0, 0
    for first in range(0, others, TILES):
        tiles = first + tl.arange(0, TILES)
        if TURNED:
            rows, columns = first * ROWS + tl.arange(0, TILES * ROWS), own * COLUMNS + tl.arange(0, COLUMNS)
        else:
            rows, columns = own * ROWS + tl.arange(0, ROWS), first * COLUMNS + tl.arange(0, TILES * COLUMNS)
        at = rows.to(tl.int64)[:, None] * table_row + columns.to(tl.int64)[None, :] * table_column
        inside = (rows < queries)[:, None] & (columns < keys)[None, :]
        some = (tl.load(table + at, mask=inside, other=0) != 0).to(tl.int32)
        # Rows beyond the last query do not matter. Columns beyond the last key must be masked.
        all_ = tl.where((rows < queries)[:, None], some, 1)
        if TURNED:
            some = tl.max(tl.max(tl.reshape(some, [TILES, ROWS, COLUMNS]), 2), 1)
            all_ = tl.min(tl.min(tl.reshape(all_, [TILES, ROWS, COLUMNS]), 2), 1)
        else:
            some = tl.max(tl.max(tl.reshape(some, [ROWS, TILES, COLUMNS]), 2), 0)
            all_ = tl.min(tl.min(tl.reshape(all_, [ROWS, TILES, COLUMNS]), 2), 0)
        some = some - all_
        tl.store(indices + full + tl.cumsum(all_, 0) - 1, tiles, mask=all_ > 0)
        tl.store(indices + others - partial - tl.cumsum(some, 0), tiles, mask=some > 0)
        full += tl.sum(all_, 0)
        partial += tl.sum(some, 0)
    tl.store(lists, full)
    tl.store(lists + 1, partial)


@triton.jit
def listed_tiles(lists, others):
    """Return the pointer to the indices of a list, and where its wholly and partly visible tiles are.

    The indices 0 to full - 1 are those of the wholly visible tiles; first to others - 1, of the others.

    Returns the pointer, full and first.
    """
    return lists + 2, tl.load(lists), others - tl.load(lists + 1)


class Listing:
    """A launch of inner_table_kernel, with all arguments that do not change between calls of the same shapes.

    steps: strides of the lists along B and H, 0 if the mask is broadcast there, and the number of tiles in
        the listed dimension.
    """

    def __init__(self, table: Tensor, sizes: tuple[int, int], rows: int, columns: int, turned: bool):
        """Prepare for a mask (B or 1, H or 1, T or 1, S or 1) with sizes T and S, in tiles rows x columns.

        turned: whether to list the tiles of queries for each tile of keys, instead of the reverse.
        """
        queries, keys = sizes
        batch, heads = table.shape[:2]
        owns, others = -(-queries // rows), -(-keys // columns)
        if turned:
            owns, others = others, owns
        steps = (step if size > 1 else 0 for step, size in zip(table.stride(), table.shape, strict=True))
        self.numbers = (queries, keys, heads, *steps, owns, others)
        tiles = min(1 << (others - 1).bit_length(), max(1, BLOCK // (rows * columns)))
        self.constants = (rows, columns, tiles, turned)
        self.shape = batch * heads * owns, 2 + others
        step = owns * (2 + others)
        self.steps = (step * heads if batch > 1 else 0, step if heads > 1 else 0, others)
        self.compiled: Callable[..., None] | None = None

    def run(self, table: Tensor) -> Tensor:
        """Return the lists of a mask, given as uint8."""
        lists = torch.empty(self.shape, dtype=torch.int32, device=table.device)
        arguments = (table, lists, *self.numbers, *self.constants)
        if self.compiled is not None:
            self.compiled(*arguments)
            return lists
        launched = inner_table_kernel[(self.shape[0],)](*arguments, num_warps=8)
        if launched is not None:  # None in the interpreter
            self.compiled = launched[(self.shape[0], 1, 1)]
        return lists
