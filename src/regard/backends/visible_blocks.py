"""Which blocks of a call have something to see, for FlexAttention: found without asking every pair.

Causal masks, windows and lengths are intervals, and documents mostly lie in order: the ends of a block tell
all of it. A block that is taken for one that has something to see, and has not, costs time and nothing else.
The rest is asked, some rows at a time. (PyTorch's create_block_mask asks every pair: it is long to compile,
and uncompiled it holds all of them.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.call import Call
from regard.masks.mask import Mask, Window
from regard.masks.tile import Tile, whole_tile

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["seen_blocks"]

BLOCK = 128
"""Rows and keys of a block."""

PAIRS_AT_ONCE = 1 << 24
"""So many pairs are asked about at once."""

REMEMBERED = 1 << 18
"""Masks of at most so many blocks that no tensor is part of are remembered: the last 32, of 4 MiB at most."""


def seen_blocks(call: Call) -> BlockMask:
    """The blocks in which some pairs, and those in which all pairs, may see each other."""
    _, _, queries, keys = call.sizes
    mask, device = call.mask, call.query.device
    plain = mask.only("causal", "window") and queries * keys <= REMEMBERED * BLOCK**2
    # What is made while a graph is captured, or traced, or of tensors that only pretend, is none to keep.
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    real = type(call.query) in (Tensor, nn.Parameter)
    if not plain or not real or capturing or torch.compiler.is_compiling():
        return _found(mask, call.whole)
    return _remembered(mask.causal, mask.window, queries, keys, call.start, device)


@functools.lru_cache(maxsize=32)
def _remembered(
    causal: bool, window: Window | None, queries: int, keys: int, start: int, device: torch.device
) -> BlockMask:
    with torch.inference_mode(False):
        return _found(Mask(causal=causal, window=window), whole_tile(queries, keys, start, 1, 1, device))


def _found(mask: Mask, tile: Tile) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    some, whole = _known(mask, tile)
    if not mask.only("causal", "window", "lengths", "documents"):
        any_asked, all_asked = _asked(mask, tile)
        some, whole = some & any_asked, whole & all_asked
    sizes = len(tile.rows_T), len(tile.columns_S)
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~whole), *_in_order(whole), BLOCK, _may_see(mask, tile), seq_lengths=sizes
    )


def _may_see(mask: Mask, tile: Tile) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    # A tensor: a Python number that changes would make torch.compile compile the mask again.
    start = torch.full((), tile.start, device=tile.rows_T.device)

    def may_see(batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        return mask.sees(batch, head, row + start, j, row)

    return may_see


def _known(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """What the ends of blocks tell, (B or 1, 1, blocks of rows, blocks of keys): where there may be something
    to see, and where everything can be."""
    queries, keys = len(tile.rows_T), len(tile.columns_S)
    row, begin = tile.rows_T[::BLOCK, None], tile.columns_S[::BLOCK]
    first, last = row + tile.start, (row + BLOCK).clamp_max(queries) - 1 + tile.start
    end = begin + BLOCK - 1
    some = torch.ones(1, 1, len(row), len(begin), dtype=torch.bool, device=row.device)
    whole = some & (row + BLOCK <= queries) & (end < keys)
    left, right = mask.sides
    if left is not None:
        some, whole = some & (end >= first - left), whole & (begin >= last - left)
    if right is not None:
        some, whole = some & (begin <= last + right), whole & (end <= first + right)
    if mask.lengths is not None:
        lengths = mask.lengths[:, None, None, None]
        some, whole = some & (begin < lengths), whole & (end < lengths)
    if mask.documents is not None:
        of_query, of_key = mask.documents
        low, high = _ends(of_query[:, tile.start : tile.start + queries])
        lowest, highest = (each.mT for each in _ends(of_key[:, :keys]))
        some = some & (low <= highest) & (lowest <= high)
        whole = whole & (low == high) & (lowest == highest) & (low == lowest)
    return some, whole


def _ends(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number of each block, (B, 1, blocks, 1) of (B, many)."""
    last = ids[:, -1:].expand(-1, -ids.shape[1] % BLOCK)
    found = torch.cat([ids, last], 1).unflatten(1, (-1, BLOCK)).aminmax(dim=2)
    return found.min[:, None, :, None], found.max[:, None, :, None]


def _asked(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """Whether any pair of each block, and whether all, may see each other by what has to be asked."""
    keys = len(tile.columns_S)
    asked = Mask(table=mask.table, question=mask.question)
    rows_at_once = max(1, PAIRS_AT_ONCE // (tile.batch * tile.heads * keys * BLOCK)) * BLOCK
    found = []
    for rows in tile.rows_T.split(rows_at_once):
        seen = asked.tile(tile._replace(rows_T=rows))
        seen = seen.expand(*seen.shape[:2], len(rows), keys)
        seen = torch.nn.functional.pad(seen, (0, -keys % BLOCK, 0, -len(rows) % BLOCK))
        blocks = seen.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        found.append((blocks.any(5).any(3), blocks.all(5).all(3)))
    any_asked, all_asked = zip(*found, strict=True)
    return torch.cat(any_asked, 2), torch.cat(all_asked, 2)


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of rows has, and which: those first, in their order."""
    order = blocks.byte().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()
