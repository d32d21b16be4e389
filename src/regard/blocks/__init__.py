"""Blocks: compute the T x S score matrix block by block, without storing it as a whole."""

from regard.blocks.additive_blocks import add_additive_gradients, additive_scores, at_once
from regard.blocks.tiling import column_blocks, row_blocks, softcap_slope, tile_scores

__all__ = [
    "add_additive_gradients",
    "additive_scores",
    "at_once",
    "column_blocks",
    "row_blocks",
    "softcap_slope",
    "tile_scores",
]
