"""Call: one attention, checked and projected. It is what backends and looking passes are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look import Look
from regard.masks.mask import Mask
from regard.masks.tile import Tile, whole_tile
from regard.positions import Bias
from regard.select import Select, Soft

__all__ = ["Call", "Forward"]


class Forward(NamedTuple):
    """What a backend gives back: output (B, H, T, E), lse (B, H, T), and for selections other than Soft what
    the looking pass cannot find again."""

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One attention: query (B, H, T, D), key (B, K, S, D), value (B, K, S, E), H a multiple of K, after the
    score's projections and with unseen keys cleaned.

    combine "inner" uses scale, "additive" uses vector (H or 1, D). bias is a tensor that broadcasts to
    (B, H, T, S), a position scheme that acts on scores, or None. beams: how many sequences of queries stand
    side by side as its rows.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    combine: str
    scale: float
    vector: Tensor | None
    mask: Mask
    bias: Tensor | Bias | None
    select: Select
    start: int
    dropout: float
    look: Look | None = None
    beams: int = 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    @property
    def temperature(self) -> float:
        """What scores are divided by; 1 for selections that have none."""
        return self.select.temperature if isinstance(self.select, Soft) else 1.0

    @property
    def whole(self) -> Tile:
        """The tile of all rows and columns."""
        batch, heads, queries, keys = self.sizes
        return whole_tile(queries, keys, self.start, batch, heads, self.query.device)

    @property
    def positions(self) -> Tensor:
        """Where each row stands in its sequence, (T,): beams stand side by side, each from `start` on."""
        queries = self.query.shape[2]
        return self.start + torch.arange(queries, device=self.query.device) % max(queries // self.beams, 1)

    @property
    def trains(self) -> bool:
        """Whether a gradient will be asked for."""
        tensors = (self.query, self.key, self.value, self.vector, *self.bias_tensors)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

    @property
    def bias_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the bias that may learn."""
        if isinstance(self.bias, Tensor):
            return (self.bias,)
        return () if self.bias is None else tuple(self.bias.parameters())

    def detached(self) -> Call:
        """The same call cut from the graph, to be kept for a backward pass."""
        return replace(
            self,
            query=self.query.detach(),
            key=self.key.detach(),
            value=self.value.detach(),
            vector=None if self.vector is None else self.vector.detach(),
            bias=self.bias.detach() if isinstance(self.bias, Tensor) else self.bias,
        )

    def widened(self) -> Call:
        """The same call in float32 at least: half precision is for storing numbers, not adding them up."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        if dtype == self.query.dtype:
            return self
        return replace(
            self,
            query=self.query.to(dtype),
            key=self.key.to(dtype),
            value=self.value.to(dtype),
            vector=None if self.vector is None else self.vector.to(dtype),
        )

    def spread(self, tensor_BKSX: Tensor) -> Tensor:
        """Keys or values with one head for each query head."""
        if self.groups == 1:
            return tensor_BKSX
        return tensor_BKSX.repeat_interleave(self.groups, dim=1)

    def bias_tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor | None:
        """What the bias adds to the scores of this tile; query_BHTD are the tile's rows of the query."""
        if self.bias is None:
            return None
        if isinstance(self.bias, Tensor):
            return tile.take(self.bias)
        return self.bias.tile(query_BHTD, tile)
