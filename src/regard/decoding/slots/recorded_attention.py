"""RecordedAttention: the attention weights of hypotheses, recorded by the steps of a search.

A decoding step computes the cross-attention anyway. Storing its weights is cheaper than forced decoding after
the search, which gives the same weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.decoding.forced_decoding import sites_of
from regard.decoding.slots.decoder import SlotDecoder
from regard.models.base import Encoded, Model
from regard.roles import BySite, Role

__all__ = ["RecordedAttention"]


class RecordedAttention:
    """The attention weights of the hypotheses of each sentence, and the norms of the value vectors.

    sites: the recorded attention layers and their roles.
    columns: the index of each site among those that the decoder records.
    complete: whether the search has recorded the weights. It has not if they would need too much memory.
    """

    def __init__(self, sites: dict[str, Role], columns: list[int]):
        self.sites, self.columns, self.complete, self._heads = sites, columns, False, True
        self._weights: dict[int, Tensor] = {}
        self._norms: list[Tensor] = []
        self._source_lengths: list[int] = []

    @classmethod
    def of(cls, model: Model, kind: type[SlotDecoder], look: str) -> RecordedAttention | None:
        """Return an object for the sites that match `look`; None if the decoder does not record all of them.

        kind: the class of the decoder.
        """
        possible, wanted = kind.recordable(model), sites_of(model, look)
        if not wanted or not possible.keys() >= set(wanted):
            return None
        names = list(possible)
        sites = {name: possible[name] for name in wanted}
        return cls(sites, [names.index(name) for name in wanted])

    def begin(self, encoded: Encoded) -> None:
        """Store the source lengths and the norms of the value vectors, (B, H, S) for each site."""
        self.complete, self._source_lengths = True, encoded.lengths.tolist()
        norms = torch.stack([encoded.memories[column].value.norm(dim=-1) for column in self.columns], 1)
        self._heads = norms.dim() == 4
        norms_BXHS = norms if self._heads else norms[:, :, None]
        self._norms = list(norms_BXHS.float().cpu().unbind(0))

    def write(self, rows: list[int], weights: Tensor) -> None:
        """Store the weights of all hypotheses of some sentences.

        rows: the indices of the sentences.
        weights: (b, N, X, H, T, S), with X sites, on the CPU.
        """
        if self.columns != list(range(weights.shape[2])):
            weights = weights[:, :, self.columns]
        self._weights.update(zip(rows, weights.unbind(0), strict=True))

    def of_hypothesis(self, row: int, rank: int, length: int) -> tuple[BySite[Tensor], dict[str, Tensor]]:
        """Return the weights (H, T, S), or (T, S) without heads, and the value norms (H, S) of each site.

        row, rank: the index of the sentence, and of one of its hypotheses.
        length: the number of tokens of the hypothesis, T.
        """
        source = self._source_lengths[row]
        weights_XHTS = self._weights[row][rank, :, :, :length, :source]
        if not self._heads:
            weights_XHTS = weights_XHTS[:, 0]
        attention = BySite(zip(self.sites, weights_XHTS.unbind(0), strict=True), self.sites)
        norms_XHS = self._norms[row][:, :, :source]
        return attention, dict(zip(self.sites, norms_XHS.unbind(0), strict=True))
