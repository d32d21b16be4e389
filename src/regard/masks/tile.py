"""Tile: a block of the T x S rectangle of one call. Masks and biases are asked about tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Tile", "whole_tile"]


class Tile(NamedTuple):
    """Which rows and columns of which call: rows_T and columns_S count from 0, `start` places row 0."""

    rows_T: Tensor
    columns_S: Tensor
    start: int
    batch: int
    heads: int

    @property
    def i_T1(self) -> Tensor:
        """The absolute position of each query, as a column."""
        return (self.rows_T + self.start)[:, None]

    @property
    def j_S(self) -> Tensor:
        """The position of each key, as a row."""
        return self.columns_S

    def take(self, tensor: Tensor) -> Tensor:
        """These rows and columns of a tensor (..., T or 1, S or 1), where a size of 1 stands for all."""
        if tensor.shape[-2] != 1:
            tensor = tensor.index_select(-2, self.rows_T)
        if tensor.shape[-1] != 1:
            tensor = tensor.index_select(-1, self.columns_S)
        return tensor


def whole_tile(
    queries: int, keys: int, start: int, batch: int, heads: int, device: torch.device | str | None = None
) -> Tile:
    """The tile that is the whole rectangle."""
    return Tile(torch.arange(queries, device=device), torch.arange(keys, device=device), start, batch, heads)
