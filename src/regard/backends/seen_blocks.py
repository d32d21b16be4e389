"""Which blocks of a call have something to see, for FlexAttention: found without holding the whole mask.

Causal masks, windows and lengths are intervals: the ends of a block tell all of it. The rest is asked, some
rows at a time. (PyTorch's create_block_mask asks every pair; compiled it took minutes to be made ready, and
otherwise holds all of them.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.call import Call

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask, _mask_mod_signature

__all__ = ["seen_blocks"]

BLOCK = 128
"""Rows and keys of a block."""

PAIRS_AT_ONCE = 1 << 24
"""So many pairs are asked about at once."""


def seen_blocks(call: Call, may_see: _mask_mod_signature) -> BlockMask:
    """The blocks in which some pairs, and those in which all pairs, may see each other."""
    from torch.nn.attention.flex_attention import BlockMask

    _, _, queries, keys = call.sizes
    some, whole = _known(call)
    if not call.mask.only("causal", "window", "lengths"):
        any_asked, all_asked = _asked(call)
        some, whole = some & any_asked, whole & all_asked
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~whole), *_in_order(whole), BLOCK, may_see, seq_lengths=(queries, keys)
    )


def _known(call: Call) -> tuple[Tensor, Tensor]:
    """What the ends of blocks tell, (B or 1, 1, blocks of rows, blocks of keys): where there may be something
    to see, and where everything can be."""
    _, _, queries, keys = call.sizes
    device, mask = call.query.device, call.mask
    row = torch.arange(0, queries, BLOCK, device=device)[:, None]
    begin = torch.arange(0, keys, BLOCK, device=device)
    first, last = row + call.start, (row + BLOCK).clamp_max(queries) - 1 + call.start
    end = begin + BLOCK - 1
    some = torch.ones(1, 1, len(row), len(begin), dtype=torch.bool, device=device)
    whole = some & (row + BLOCK <= queries) & (end < keys)
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    if left is not None:
        some, whole = some & (end >= first - left), whole & (begin >= last - left)
    if right is not None:
        some, whole = some & (begin <= last + right), whole & (end <= first + right)
    if mask.lengths is not None:
        lengths = mask.lengths[:, None, None, None]
        some, whole = some & (begin < lengths), whole & (end < lengths)
    return some, whole


def _asked(call: Call) -> tuple[Tensor, Tensor]:
    """Whether any pair of each block, and whether all, may see each other by what has to be asked."""
    batch, heads, _, keys = call.sizes
    asked = replace(call.mask, causal=False, window=None, lengths=None)
    rows_at_once = max(1, PAIRS_AT_ONCE // (batch * heads * keys * BLOCK)) * BLOCK
    found = []
    for rows in call.whole.rows_T.split(rows_at_once):
        seen = asked.tile(call.whole._replace(rows_T=rows))
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
