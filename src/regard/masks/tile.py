"""Tile: a block of the T x S score matrix of one call. Masks and biases are evaluated per tile."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Tile", "whole_tile"]


class Tile(NamedTuple):
    """A block of the T x S score matrix: its queries (rows) and its keys (columns).

    rows_T: indices of the queries in the call, from 0.
    columns_S: indices of the keys in the call, from 0.
    start: the absolute position of query 0. It is above 0 if earlier tokens are in a cache (see `start` of
        attention()).
    batch, heads: B and H of the call.
    """

    rows_T: Tensor
    columns_S: Tensor
    start: int
    batch: int
    heads: int

    @property
    def i_T1(self) -> Tensor:
        """The absolute position of each query of the tile, as a column (T, 1)."""
        return (self.rows_T + self.start)[:, None]

    @property
    def j_S(self) -> Tensor:
        """The position of each key of the tile, (S,)."""
        return self.columns_S

    def take(self, tensor: Tensor) -> Tensor:
        """Select the rows and columns of this tile from a tensor (..., T or 1, S or 1).

        A dimension of size 1 is kept, so that the result broadcasts.
        """
        if tensor.shape[-2] != 1:
            tensor = tensor.index_select(-2, self.rows_T)
        if tensor.shape[-1] != 1:
            tensor = tensor.index_select(-1, self.columns_S)
        return tensor


def whole_tile(
    queries: int, keys: int, start: int, batch: int, heads: int, device: torch.device | str | None = None
) -> Tile:
    """Return the Tile that covers the whole score matrix: `queries` rows and `keys` columns."""
    return Tile(torch.arange(queries, device=device), torch.arange(keys, device=device), start, batch, heads)
