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
from regard.roles import CROSS, BySite, Role

__all__ = ["RecordedAttention", "value_norms"]


class RecordedAttention:
    """The attention weights of the hypotheses of each sentence, and the norms of the value vectors.

    sites: the recorded attention layers and their roles.
    columns: the index of each site among those that the decoder records.
    complete: whether the search has recorded the weights. It has not if they would need too much memory.
    """

    def __init__(self, sites: dict[str, Role], columns: list[int]):
        self.sites, self.columns, self.complete, self._heads = sites, columns, False, True
        self._weights: dict[int, Tensor] = {}
        self._norms = torch.zeros(0)
        self._source_lengths: list[int] = []

    @classmethod
    def of(cls, model: Model, kind: type[SlotDecoder], look: str) -> RecordedAttention | None:
        """Return an object for the sites that match `look`; None if the decoder does not record all of them.

        kind: the class of the decoder.
        """
        possible = kind.recordable(model)
        # A decoder records all cross-attention layers, so that the sites of the model are not needed.
        wanted = list(possible) if look == CROSS else sites_of(model, look)
        if not wanted or not possible.keys() >= set(wanted):
            return None
        names = list(possible)
        sites = {name: possible[name] for name in wanted}
        return cls(sites, [names.index(name) for name in wanted])

    def finish(self, encoded: Encoded, norms: Tensor) -> None:
        """Store the source lengths and the norms of the value vectors, the result of value_norms()."""
        self.complete, self._source_lengths = True, encoded.lengths.tolist()
        self._heads = encoded.memories[0].value.dim() == 4
        self._norms = norms.cpu()

    def write(self, rows: list[int], weights: Tensor) -> None:
        """Store the weights of all hypotheses of some sentences.

        rows: the indices of the sentences.
        weights: (b, N, X, H, T, S), with X sites, on the CPU.
        """
        self._weights.update(zip(rows, weights.unbind(0), strict=True))

    def of_hypothesis(self, row: int, rank: int, length: int) -> tuple[BySite[Tensor], dict[str, Tensor]]:
        """Return the weights (H, T, S), or (T, S) without heads, and the value norms (H, S) of each site.

        row, rank: the index of the sentence, and of one of its hypotheses.
        length: the number of tokens of the hypothesis, T.
        """
        source = self._source_lengths[row]
        # Copies, so that a hypothesis does not keep the memory of all others.
        weights_XHTS = self._weights[row][rank, self.columns, :, :length, :source].float()
        if not self._heads:
            weights_XHTS = weights_XHTS[:, 0]
        attention = BySite(zip(self.sites, weights_XHTS.unbind(0), strict=True), self.sites)
        norms_XHS = self._norms[row, self.columns, :, :source]
        return attention, dict(zip(self.sites, norms_XHS.unbind(0), strict=True))


def value_norms(encoded: Encoded) -> Tensor:
    """Return the norms of the value vectors of all memories, (B, X, H, S), float32; H is 1 without heads."""
    norms = torch.stack([memory.value.norm(dim=-1) for memory in encoded.memories], 1)
    return (norms if norms.dim() == 4 else norms[:, :, None]).float()
