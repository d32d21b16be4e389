# mypy: disable-error-code="no-untyped-def"
"""Documents as masks: which tiles of keys the queries of a tile see, for the kernels of inner products.

inner_documents_kernel reads the document ids once for each tile, before the attention kernels, which then
skip tiles outside the range that it finds. If the ids of a sequence are sorted, as in packed sequences, the
range has no hidden tile. Otherwise it can have some, and the kernels mask them.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.direct_launch import DirectLaunch, direct_launch

__all__ = ["DocumentRanges", "inner_documents_kernel", "tiles_in_range"]

BLOCK = 4096
"""Number of document ids that a program loads at once."""


@triton.jit(do_not_specialize=("own_start", "other_start"))
def inner_documents_kernel(
    own_ids, other_ids, ranges, own_start, other_start, own_step, other_step, owns, others, tiles,
    OWN: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the range of other tiles that one tile sees.

    own_ids, other_ids: document ids of queries and keys, or of keys and queries, (B or 1, N).
    ranges: int32, (B or 1, tiles, 4), receives the tiles first, full_first, full_last and last, see
        key_tiles() in inner_tiles.py.
    own_start, other_start: the position of the first id.
    own_step, other_step: strides along B. owns, others: number of positions.
    OWN, OTHER: size of the tiles.
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
        found = tl.load(ids + other, mask=other < others, other=0)
        seen = (other < others) & (found >= least) & (found <= most)
        begin = tl.minimum(begin, tl.min(tl.where(seen, other, others), 0))
        end = tl.maximum(end, tl.max(tl.where(seen, other + 1, 0), 0))
        count += tl.sum(seen.to(tl.int32), 0)
    begin = tl.minimum(begin, end)  # both are 0 if no document is seen
    whole = (least == most) & (count == end - begin)
    ranges += tl.program_id(0).to(tl.int64) * 4
    tl.store(ranges, begin // OTHER)
    tl.store(ranges + 1, tl.where(whole, tl.cdiv(begin, OTHER), begin // OTHER))
    tl.store(ranges + 2, tl.where(whole, end // OTHER, begin // OTHER))
    tl.store(ranges + 3, tl.cdiv(end, OTHER))


@triton.jit
def tiles_in_range(own, first, full_first, full_last, last):
    """Return the tiles first, full_first, full_last and last that key_tiles() found, within a range.

    own: pointer to the range.
    """
    first = tl.maximum(first, tl.load(own))
    last = tl.maximum(tl.minimum(last, tl.load(own + 3)), first)
    full_first, full_last = tl.maximum(full_first, tl.load(own + 1)), tl.minimum(full_last, tl.load(own + 2))
    full_first = tl.minimum(tl.maximum(full_first, first), last)
    return first, full_first, tl.minimum(tl.maximum(full_last, full_first), last), last


class DocumentRanges:
    """A launch of inner_documents_kernel, for document ids of one shape.

    steps: stride of the ranges along B, 0 if all sequences share them; the other strides of lists are 0.
    """

    def __init__(
        self, ids: tuple[Tensor, Tensor], sizes: tuple[int, int], rows: int, columns: int, turned: bool
    ):
        """Prepare for document ids of queries and keys, of T queries and S keys, in tiles rows x columns.

        turned: whether to find the range of tiles of queries for each tile of keys.
        """
        (own, other), (owns, others) = ids, sizes
        self.turned, self.constants = turned, (rows, columns, BLOCK)
        if turned:
            own, other, owns, others, self.constants = other, own, others, owns, (columns, rows, BLOCK)
        batch, tiles = max(own.shape[0], other.shape[0]), -(-owns // self.constants[0])
        steps = (0 if each.shape[0] == 1 else each.stride(0) for each in (own, other))
        self.numbers = (*steps, owns, others, tiles)
        self.shape, self.grid = (batch, tiles, 4), (batch * tiles, 1, 1)
        self.steps = (4 * tiles if batch > 1 else 0, 0, 0, 0)
        self.compiled: Callable[..., None] | None = None
        self.direct: DirectLaunch | None = None
        self.lock = threading.Lock()

    def run(self, of_query: Tensor, of_key: Tensor, start: int) -> Tensor:
        """Return the ranges, (B or 1, tiles, 4). start: position of the first query."""
        ranges = torch.empty(self.shape, dtype=torch.int32, device=of_query.device)
        ids, starts = (of_query, of_key), (start, 0)
        if self.turned:
            ids, starts = (of_key, of_query), (0, start)
        if self.direct is not None:
            with self.lock:
                slots = self.direct.slots
                slots[0], slots[1], slots[2] = ids[0].data_ptr(), ids[1].data_ptr(), ranges.data_ptr()
                slots[3], slots[4] = starts
                self.direct.run(torch._C._cuda_getCurrentRawStream(of_query.device.index))
            return ranges
        arguments = (*starts, *self.numbers, *self.constants)
        if self.compiled is not None:
            self.compiled(*ids, ranges, *arguments)
            return ranges
        launched: Any = inner_documents_kernel[self.grid](*ids, ranges, *arguments, num_warps=4)
        if launched is not None:  # None if interpreted, or only compiled
            direct = direct_launch(launched, self.grid, (None, None, None, *arguments))
            self.compiled, self.direct = launched[self.grid], None if direct is None else direct[0]
        return ranges
