"""Block masks for FlexAttention, computed without evaluating the mask for every pair of query and key.

For causal masks, windows and lengths, the keys that a query sees are an interval. Document ids are usually
sorted. So the first and last element of a block are enough to decide whether the block is visible. Sometimes
a masked block is treated as visible. This costs time but does not change the result, because the kernel still
evaluates the mask inside the block. Other masks are evaluated for every pair, some rows at a time.

PyTorch's create_block_mask evaluates every pair for all masks: it is slow to compile, and without compilation
it stores the whole T x S mask.
"""

from __future__ import annotations

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
"""A block of the score matrix has this many query rows and this many keys."""

PAIRS_AT_ONCE = 1 << 24
"""Number of (row, key) pairs to evaluate at once, for masks that must be evaluated for every pair."""

REMEMBERED = 1 << 18
"""A block mask is cached if it has at most this many blocks. A larger block mask is computed again for each
call."""

KEPT = 32
"""The cache holds the last 32 causal and window masks, with up to 4 MiB each, and all those that CUDA graphs
use: a graph reads them at each replay."""

_Key = tuple[bool, Window | None, int, int, int, torch.device]
_kept: dict[_Key, BlockMask] = {}
_in_graphs: dict[_Key, BlockMask] = {}


def seen_blocks(call: Call) -> BlockMask:
    """Return FlexAttention's BlockMask for the mask of the call.

    A BlockMask lists the blocks that are partly visible, and the blocks that are fully visible. A block
    consists of (query, key) pairs.
    """
    _, _, queries, keys = call.sizes
    mask, device = call.mask, call.query.device
    plain = mask.only("causal", "window") and queries * keys <= REMEMBERED * BLOCK**2
    real = type(call.query) in (Tensor, nn.Parameter)
    if not plain or not real or torch.compiler.is_compiling():  # fake tensors must not be cached
        return _block_mask(mask, call.whole)
    key = (mask.causal, mask.window, queries, keys, call.start, device)
    if not _capturing(device):
        return _cached(key)
    # Tensors that are created during the capture of a CUDA graph must not be cached, but a table from before
    # the capture serves. The graph then does not compute it in each replay.
    blocks = _in_graphs.get(key, _kept.get(key))
    if blocks is None:
        return _block_mask(mask, call.whole)
    _in_graphs[key] = blocks
    return blocks


def _capturing(device: torch.device) -> bool:
    """Whether operations on this device are being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _cached(key: _Key) -> BlockMask:
    """Return the block mask of a causal or window mask from the cache."""
    blocks = _kept.pop(key, None)
    if blocks is None:
        causal, window, queries, keys, start, device = key
        with torch.inference_mode(False):
            blocks = _block_mask(
                Mask(causal=causal, window=window), whole_tile(queries, keys, start, 1, 1, device)
            )
    _kept[key] = blocks  # the last one is the last used
    for oldest in list(_kept)[: max(0, len(_kept) - KEPT)]:
        _kept.pop(oldest, None)
    return blocks


def _block_mask(mask: Mask, tile: Tile) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    some, whole = _from_ends(mask, tile)
    if not mask.only("causal", "window", "lengths", "documents"):
        any_visible, all_visible = _evaluated(mask, tile)
        some, whole = some & any_visible, whole & all_visible
    sizes = len(tile.rows_T), len(tile.columns_S)
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~whole), *_in_order(whole), BLOCK, _may_see(mask, tile), seq_lengths=sizes
    )


def _may_see(mask: Mask, tile: Tile) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    # `start` is a tensor, because torch.compile would recompile the mask for each new Python number.
    start = torch.full((), tile.start, device=tile.rows_T.device)

    def may_see(batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        return mask.sees(batch, head, row + start, j, row)

    return may_see


def _from_ends(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return which blocks may contain visible (query, key) pairs, and which blocks are fully visible.

    Both results are bool tensors, (B or 1, 1, blocks of rows, blocks of keys). They are computed from the
    first and last position and the smallest and largest document id of each block. Only the parts causal,
    window, lengths and documents of the mask are considered.
    """
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
    """Return the smallest and the largest document id of each block, two tensors (B, 1, blocks, 1).

    ids: the document id of each position, (B, N).
    """
    last = ids[:, -1:].expand(-1, -ids.shape[1] % BLOCK)
    ends = torch.cat([ids, last], 1).unflatten(1, (-1, BLOCK)).aminmax(dim=2)
    return ends.min[:, None, :, None], ends.max[:, None, :, None]


def _evaluated(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return which blocks contain visible (query, key) pairs, and which blocks are fully visible.

    Only mask.table and mask.condition are considered; they are evaluated for every pair. Both results are
    (B or 1, H or 1, blocks of rows, blocks of keys).
    """
    keys = len(tile.columns_S)
    evaluated = Mask(table=mask.table, condition=mask.condition)
    rows_at_once = max(1, PAIRS_AT_ONCE // (tile.batch * tile.heads * keys * BLOCK)) * BLOCK
    results = []
    for rows in tile.rows_T.split(rows_at_once):
        seen = evaluated.tile(tile._replace(rows_T=rows))
        seen = seen.expand(*seen.shape[:2], len(rows), keys)
        seen = torch.nn.functional.pad(seen, (0, -keys % BLOCK, 0, -len(rows) % BLOCK))
        blocks = seen.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        results.append((blocks.any(5).any(3), blocks.all(5).all(3)))
    any_visible, all_visible = zip(*results, strict=True)
    return torch.cat(any_visible, 2), torch.cat(all_visible, 2)


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True entries in each row of `blocks`, and the indices of all key blocks.

    In each row, the indices of the True entries come first, in increasing order, as BlockMask requires.

    blocks: a bool tensor, (..., blocks of rows, blocks of keys).
    """
    order = blocks.byte().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()
