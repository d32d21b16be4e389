"""Call: the checked and projected arguments of one attention() call, which the backends take as input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look import Look
from regard.masks.mask import Mask, Tile, are_bounded, cleaned, readable, whole_tile
from regard.positions import Bias
from regard.select import Select, Soft

__all__ = ["Call", "Forward", "divided"]


class Forward(NamedTuple):
    """The result of a backend: output (B, H, T, E) and lse (B, H, T).

    weights, chosen, log_probability and entropy are what the selection has computed. Only the reference
    backend sets these fields. They are used for selections other than Soft; for Soft, the weights and the
    entropy are recomputed from the lse if `look` requests them.
    """

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one attention() call, with query and key projected by the score function.

    Keys and values that no query can see are set to 0, unless `uncleaned` is True.

    query: (B, H, T, D).
    key: (B, K, S, D), where H is a multiple of K.
    value: (B, K, S, E).
    combine: "inner" for the score scale * q . k, "additive" for the score v . tanh(q + k).
    scale: factor of the inner product.
    vector: the vector v of an additive score function, (H or 1, D); None for an inner product.
    bias: a tensor broadcastable to (B, H, T, S), a position scheme that acts on scores, or None.
    beams: number of sequences that are concatenated along T, as in beam search.
    softcap: c, for scores c * tanh(score / c), before the bias is added; None for scores without a cap.
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
    softcap: float | None = None
    uncleaned: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, T, S) of this call."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def groups(self) -> int:
        """The number of query heads that share one key head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    @property
    def temperature(self) -> float:
        """The softmax temperature; 1 for selections other than Soft."""
        return self.select.temperature if isinstance(self.select, Soft) else 1.0

    @property
    def whole(self) -> Tile:
        """The Tile that describes the whole T x S matrix of scores: all queries and all keys of this call."""
        batch, heads, queries, keys = self.sizes
        return whole_tile(queries, keys, self.start, batch, heads, self.query.device)

    @property
    def positions(self) -> Tensor:
        """The position of each query in its sequence, (T,); the first query of each beam is at `start`."""
        queries = self.query.shape[2]
        return self.start + torch.arange(queries, device=self.query.device) % max(queries // self.beams, 1)

    @property
    def trains(self) -> bool:
        """Whether any input requires a gradient and gradients are enabled."""
        tensors = (self.query, self.key, self.value, self.vector, *self.bias_tensors)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

    @property
    def bias_tensors(self) -> tuple[Tensor, ...]:
        """The bias tensor, or the parameters of the position scheme, as a tuple; () if there is no bias."""
        if isinstance(self.bias, Tensor):
            return (self.bias,)
        return () if self.bias is None else tuple(self.bias.parameters())

    def cleaned(self, bounded: bool = False) -> Call:
        """Return the call with 0 for the keys and values that its mask hides from all queries.

        bounded: leave them if the norms of keys and of values are known to be finite, and not extremely
            large. Their products with queries and with gradients of the output are finite then, and their
            weights are 0, so that they have no effect.
        """
        if not self.uncleaned or (bounded and are_bounded(self.key, self.value)):
            return self
        _, heads, queries, _ = self.sizes
        key, value = cleaned(self.key, self.value, self.mask, queries, self.start, heads)
        return replace(self, key=key, value=value, uncleaned=False)

    def detached(self) -> Call:
        """Return a copy with detached tensors, which the backward pass keeps without the autograd graph."""
        return replace(
            self,
            query=self.query.detach(),
            key=self.key.detach(),
            value=self.value.detach(),
            vector=None if self.vector is None else self.vector.detach(),
            bias=self.bias.detach() if isinstance(self.bias, Tensor) else self.bias,
        )

    def widened(self) -> Call:
        """Return a copy with tensors in at least float32, since sums in half precision are inaccurate."""
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

    def capped(self, scores_BHTS: Tensor) -> Tensor:
        """Return softcap * tanh(scores / softcap), between -softcap and softcap; without cap, the scores."""
        return scores_BHTS if self.softcap is None else self.softcap * torch.tanh(scores_BHTS / self.softcap)

    def spread(self, tensor_BKSX: Tensor) -> Tensor:
        """Repeat the K heads of keys or values for the H query heads: (B, K, S, X) to (B, H, S, X)."""
        if self.groups == 1:
            return tensor_BKSX
        return tensor_BKSX.repeat_interleave(self.groups, dim=1)

    def bias_tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor | None:
        """Return the tensor to add to the scores of one tile because of the bias; None if there is no bias.

        query_BHTD: the queries of the tile.
        tile: the part of the score matrix, some queries and some keys.
        """
        if self.bias is None:
            return None
        if isinstance(self.bias, Tensor):
            return tile.take(self.bias)
        return self.bias.tile(query_BHTD, tile)

    def added(self, query: Tensor, tile: Tile, mask: Mask) -> tuple[Tensor | None, Tensor | None]:
        """Combine mask and bias of a tile into one tensor; return it, and which queries see a key.

        The first tensor is added to the scores: it broadcasts to (B, H, T, S) and is -inf where masked. The
        second broadcasts to (B, H, T) and is True if the query sees at least one key. Both are None if there
        is no mask and no bias. The second is None too if every query is known to see a key.

        query: the queries of the tile.
        mask: the mask of the call, without the parts that the kernel applies itself.
        """
        if not mask.parts and self.bias is None:
            return None, None
        dtype = self.query.dtype
        if self.query.device.type == "cpu":
            dtype = torch.promote_types(dtype, torch.float32)
        added: Tensor | float = 0.0
        visible = mask.tile(tile) if mask.parts else None
        bias = self.bias_tile(query, tile)
        if bias is not None:
            added = divided(bias, self.temperature, dtype)
            if not readable(bias) or not bool(bias.amin() > -torch.inf):
                shown = bias != -torch.inf
                visible = shown if visible is None else visible & shown
                added = torch.where(visible, added, 0.0)
        if visible is None:
            assert isinstance(added, Tensor)
            return added, None
        # If all scores of a row are -inf, the kernels return NaN or lse 0. So a row that sees no key gets no
        # -inf here; its output is set to 0 and its lse to -inf later.
        seeing = visible.any(-1)
        some_empty = not readable(visible) or not seeing.all()
        if some_empty:
            visible = visible | ~seeing.unsqueeze(-1)
        return torch.where(visible, added, -torch.inf).to(dtype), seeing if some_empty else None


def divided(tensor: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Return tensor / temperature in `dtype`. The division uses the wider of tensor.dtype and `dtype`."""
    if temperature == 1:
        return tensor.to(dtype)
    return (tensor.to(torch.promote_types(tensor.dtype, dtype)) / temperature).to(dtype)
