"""Iterate over the T x S score matrix block by block, without storing it as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.blocks.additive_blocks import additive_scores, at_once
from regard.call import Call
from regard.masks.mask import Tile

__all__ = ["column_blocks", "row_blocks", "softcap_slope", "tile_scores"]

AT_ONCE = 1 << 21
"""Maximum number of scores in a block on a CPU, 8 MiB of float32. For a GPU, at_once() increases it."""

ROWS = 128
"""Number of query rows in a block on a CPU. For a GPU, at_once() increases it."""


def row_blocks(call: Call) -> Iterator[slice]:
    """Divide the T queries of the call into blocks, and yield each block as a slice of query indices."""
    _, _, queries, _ = call.sizes
    rows = at_once(ROWS, call.query.device)
    for first in range(0, queries, rows):
        yield slice(first, min(first + rows, queries))


def column_blocks(call: Call, rows: slice, parts: int = 1) -> Iterator[tuple[slice, Tile]]:
    """Divide the keys into blocks; yield each block as a slice of key indices, with its Tile.

    rows: the queries of the tiles, as a slice.
    parts: a divisor of the maximum number of scores in a block.

    Keys at the beginning and at the end are skipped if no query in `rows` can see them. Only the causal part
    and the window of the mask are used for this.
    """
    batch, heads, _, keys = call.sizes
    low, high = call.mask.span(rows.start + call.start, rows.stop - 1 + call.start, keys)
    device = call.query.device
    most = at_once(AT_ONCE, device) // parts
    width = max(16, most // max(batch * heads * (rows.stop - rows.start), 1))
    rows_T = torch.arange(rows.start, rows.stop, device=device)
    for first in range(low, high, width):
        columns = slice(first, min(first + width, high))
        yield (
            columns,
            Tile(rows_T, torch.arange(columns.start, columns.stop, device=device), call.start, batch, heads),
        )


def tile_scores(call: Call, query_BHTD: Tensor, key_BHSD: Tensor, tile: Tile) -> Tensor:
    """Return (score + bias) / temperature for one tile; -inf where masked.

    query_BHTD, key_BHSD: the queries and keys of the tile.
    """
    if call.softcap is None:
        scores = _compared(call, query_BHTD, key_BHSD, call.temperature)
    else:
        scores = call.capped(_compared(call, query_BHTD, key_BHSD)) / call.temperature
    bias = call.bias_tile(query_BHTD, tile)
    if bias is not None:
        scores = scores + _divided(bias, call.temperature, scores.dtype)
    if call.mask.parts:
        scores = torch.where(call.mask.tile(tile), scores, -torch.inf)
    return scores


def softcap_slope(call: Call, query_BHTD: Tensor, key_BHSD: Tensor) -> Tensor:
    """Return the derivative of the capped scores by the scores, 1 - tanh(score / softcap)^2, for one tile."""
    assert call.softcap is not None
    return 1 - torch.tanh(_compared(call, query_BHTD, key_BHSD) / call.softcap).square()


def _compared(call: Call, query_BHTD: Tensor, key_BHSD: Tensor, temperature: float = 1.0) -> Tensor:
    """Return score / temperature for one tile, without soft cap, bias and mask."""
    if call.combine == "inner":
        return (query_BHTD * (call.scale / temperature)) @ key_BHSD.transpose(-2, -1)
    assert call.vector is not None
    return additive_scores(query_BHTD, key_BHSD, _divided(call.vector, temperature, query_BHTD.dtype))


def _divided(tensor: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Return tensor / temperature in `dtype`. The division uses the wider of tensor.dtype and `dtype`."""
    return (tensor.to(torch.promote_types(tensor.dtype, dtype)) / temperature).to(dtype)
