# mypy: disable-error-code="no-untyped-def"
"""Documents as masks: the keys that the queries of a tile see, for the kernels of inner products.

inner_documents_kernel reads the document ids once for each tile, before the attention kernels. It finds the
first and the last key that some query of the tile can see. In packed sequences, most tiles of queries lie in
one document, whose keys are adjacent. For such a tile, the attention kernels read these keys as if they
were the whole sequence, without document ids. For the other tiles, they compare the ids in this range.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.inner.tiles import key_tiles, query_tiles

__all__ = ["DocumentRanges", "inner_documents_kernel", "load_range", "tiles_of_keys", "tiles_of_queries"]

BLOCK = 4096
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
        self.turned, self.constants = turned, (tile, BLOCK)
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
