"""RecordedAttention: the attention weights of hypotheses, recorded by the steps of a search.

A decoding step computes the cross-attention anyway. Storing its weights is cheaper than forced decoding after
the search, which gives the same weights. On a GPU, the weights stay on the device until a hypothesis is asked
for its attention. Then those of all hypotheses of the search are copied at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import pad

from regard.decoding.forced_decoding import sites_of
from regard.decoding.hypothesis import rows_as_tuples
from regard.decoding.word_alignment import Place
from regard.fast.search.decoder import SlotDecoder
from regard.models.base import Encoded, Model
from regard.roles import CROSS, BySite, Role, matches

__all__ = ["RecordedAttention"]

MOST_DEVICE_BYTES = 2**30
"""The largest size of the weights that all searches leave on GPUs. Above it, the oldest ones are copied to
the host."""

NOTHING = torch.zeros(0)
"""Placeholder for tensors that a search has not stored yet."""


class RecordedAttention:
    """The attention weights of the hypotheses of each sentence, and the norms of the value vectors.

    sites: the recorded attention layers and their roles.
    columns: the index of each site among those that the decoder records.
    complete: whether the search has recorded the weights. It has not if they would need too much memory.
    aligned: the alignments of all hypotheses, indexed by number (see place()). An alignment may be longer
        than its hypothesis. Empty until align_all() is called.
    """

    def __init__(self, sites: dict[str, Role], columns: list[int]):
        self.sites, self.columns, self.complete, self._heads = sites, columns, False, True
        self._rows: list[list[int]] = []
        self._parts: list[Tensor] = []
        self._norms, self._lengths, self._ranks = NOTHING, NOTHING, 0
        self._source_lengths: list[int] = []
        self.aligned: list[tuple[int, ...]] = []
        self._ready: torch.cuda.Event | None = None
        self._lock = threading.Lock()

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

    def write(self, rows: list[int], weights: Tensor) -> None:
        """Store the weights of all hypotheses of some sentences.

        rows: the indices of the sentences.
        weights: (b, N, T, X, H, S), with X sites.
        """
        self._parts.append(weights)
        self._ranks = weights.shape[1]
        self._rows.append(rows)

    def clear(self) -> None:
        """Forget the weights that were stored, because the search is repeated."""
        self._rows, self._parts = [], []

    def store_values(self, encoded: Encoded) -> None:
        """Store the source lengths and the norms of the value vectors."""
        self._norms, self._heads = value_norms(encoded), encoded.memories[0].value.dim() == 4
        # A copy, because the next search overwrites the buffers of a captured encoder.
        self._lengths = encoded.lengths.clone()

    def finish(self) -> None:
        """Declare the weights complete, after the last write() and after store_values()."""
        self.complete = True
        if self._norms.is_cuda:
            self._ready = torch.cuda.Event()
            self._ready.record()
            _device_memory.add(self, sum(each.nbytes for each in self._parts))

    def of_hypothesis(self, row: int, rank: int, length: int) -> tuple[BySite[Tensor], dict[str, Tensor]]:
        """Return the weights (H, T, S), or (T, S) without heads, and the value norms (H, S) of each site.

        row, rank: the index of the sentence, and of one of its hypotheses.
        length: the number of tokens of the hypothesis, T.
        """
        self.to_host()
        source, (part, place) = self._source_lengths[row], self._places[row]
        # Copies, so that a hypothesis does not keep the memory of all others.
        weights_XHTS = self._parts[part][place, rank, :, :, :length, :source].to(torch.float32, copy=True)
        if not self._heads:
            weights_XHTS = weights_XHTS[:, 0]
        attention = BySite(zip(self.sites, weights_XHTS.unbind(0), strict=True), self.sites)
        norms_XHS = self._norms[row, :, :, :source].clone()
        return attention, dict(zip(self.sites, norms_XHS.unbind(0), strict=True))

    def place(self, number: int, length: int) -> Place:
        """Return the place of a hypothesis. number: its index among the hypotheses of all sentences."""
        return Place(self, *divmod(number, self._ranks), length)

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """For each sentence, the index of its part in _parts, and its index in this part."""
        return {row: (part, at) for part, rows in enumerate(self._rows) for at, row in enumerate(rows)}

    def alignment(self, row: int, rank: int, length: int) -> tuple[int, ...]:
        """Return the source token with the highest weight for each token of a hypothesis.

        The weights are averaged over all sites and heads. For the arguments, see of_hypothesis().
        """
        return (self.aligned or self.align_all())[row * self._ranks + rank][:length]

    def align_all(self) -> list[tuple[int, ...]]:
        """Compute `aligned`, and return it."""
        with self._lock:
            self._wait()
            aligned = list[tuple[int, ...]]()
            for part, rows in zip(self._parts, self._rows, strict=True):
                aligned += rows_as_tuples(self._align(part, rows))
            if len(self._rows) > 1:
                numbers = [
                    row * self._ranks + rank
                    for rows in self._rows
                    for row in rows
                    for rank in range(self._ranks)
                ]
                by_number = dict(zip(numbers, aligned, strict=True))
                aligned = [by_number[number] for number in range(len(aligned))]
            self.aligned = aligned
        return aligned

    def averaged(self, places: Sequence[Place], site: str, head: int | None) -> NDArray[np.float32] | None:
        """Return the weights of n hypotheses, averaged over layers and heads, (n, T, S).

        The averages are computed on the device of the weights and copied to the host at once. The values
        after the end of a target or of a source are not defined.

        places: the hypotheses.
        site, head: see regard.decoding.averaged().

        Return None if no site matches, or if there is no such head.
        """
        columns = [place for place, name in enumerate(self.sites) if matches(site, name, self.sites[name])]
        with self._lock:
            self._wait()
            on_host = bool(self._source_lengths)
            sites_at, heads_at = (2, 3) if on_host else (3, 4)
            heads = self._parts[0].shape[heads_at]
            if not columns or (head is not None and not -heads <= head < heads):
                return None
            index = columns if on_host else [self.columns[column] for column in columns]
            means = [_mean(part, sites_at, index, heads_at, head) for part in self._parts]
            longest = max(each.shape[2] for each in means)
            whole = torch.cat([pad(each, (0, 0, 0, longest - each.shape[2])).flatten(0, 1) for each in means])
            weights = _on_host(whole).numpy()
        first = np.cumsum([0, *(each.shape[0] * each.shape[1] for each in means)])
        rows = []
        for place in places:
            part, at = self._places[place.row]
            rows.append(first[part] + at * means[part].shape[1] + place.rank)
        return weights if rows == list(range(len(weights))) else weights[rows]

    def to_host(self) -> None:
        """Copy the weights of all hypotheses from the device, if they are there. Does this once."""
        with self._lock:
            if self._source_lengths:
                return
            self._wait()
            self._lengths = self._lengths.cpu()
            lengths = self._lengths.tolist()
            longest = max(lengths)  # the buffers may have more columns
            self._parts = [_on_host(self._by_site(each)[..., :longest]) for each in self._parts]
            self._norms = self._norms[:, self.columns].cpu()
            self._source_lengths = lengths
            self._ready = None
            _device_memory.remove(id(self))

    def _wait(self) -> None:
        """Wait for the search, which may have run in another stream."""
        if self._ready is not None:
            self._ready.synchronize()

    def _by_site(self, weights_bNTXHS: Tensor) -> Tensor:
        """Return the weights of the sites, (b, N, X, H, T, S)."""
        if len(self.columns) < weights_bNTXHS.shape[3]:
            weights_bNTXHS = weights_bNTXHS[:, :, :, self.columns]
        return weights_bNTXHS.permute(0, 1, 3, 4, 2, 5)

    def _align(self, weights: Tensor, rows: list[int]) -> Tensor:
        """Return the indices of the highest weights of some sentences, (b, N, T); see _parts and _rows."""
        weights_bNXHTS = weights if self._source_lengths else self._by_site(weights)
        mean_bNTS = weights_bNXHTS.mean((2, 3), dtype=torch.float32)
        # The columns after the end of a source may have weights of another sentence.
        lengths_b = self._lengths[: len(rows)]
        if rows != list(range(len(rows))):
            lengths_b = self._lengths[torch.tensor(rows, device=weights.device)]
        inside_bS = torch.arange(mean_bNTS.shape[-1], device=weights.device) < lengths_b[:, None]
        return mean_bNTS.masked_fill(~inside_bS[:, None, None], -1.0).argmax(-1).int()


def value_norms(encoded: Encoded) -> Tensor:
    """Return the norms of the value vectors of all memories, (B, X, H, S), float32; H is 1 without heads."""
    values = [memory.value for memory in encoded.memories]
    dtype = torch.promote_types(values[0].dtype, torch.float32)
    norms = [vector_norm(value, dim=-1, dtype=dtype) for value in values]
    joined = torch.stack(norms, 1) if len(norms) > 1 else norms[0][:, None]
    return (joined if joined.dim() == 4 else joined[:, :, None]).float()


def _mean(weights: Tensor, sites_at: int, sites: list[int], heads_at: int, head: int | None) -> Tensor:
    """Return the mean of weights over some sites and all heads, or one head, (b, N, T, S), float32.

    sites_at, heads_at: the dimensions of sites and heads.
    """
    if len(sites) < weights.shape[sites_at]:
        weights = weights.index_select(sites_at, torch.tensor(sites, device=weights.device))
    if head is not None:
        return weights.select(heads_at, head).mean(sites_at, dtype=torch.float32)
    return weights.mean((sites_at, heads_at), dtype=torch.float32)


def _on_host(weights: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU."""
    weights = weights.contiguous()
    if not weights.is_cuda:
        return weights
    # Copies to pinned memory are faster. It is not returned, because there is little of it.
    pinned = torch.empty(weights.shape, dtype=weights.dtype, pin_memory=True)
    return pinned.copy_(weights).clone()


class _DeviceMemory:
    """The RecordedAttention objects whose weights are on a GPU, oldest first.

    sizes: for each id(), a weak reference and the number of bytes. add() removes objects that were deleted.
    """

    def __init__(self) -> None:
        self.sizes: dict[int, tuple[weakref.ref[RecordedAttention], int]] = {}
        self.lock = threading.Lock()

    @property
    def total(self) -> int:
        """The number of bytes of all objects that were not deleted."""
        with self.lock:
            return sum(size for reference, size in self.sizes.values() if reference() is not None)

    def add(self, newest: RecordedAttention, size: int) -> None:
        """Add an object. If there are too many bytes now, copy the weights of the oldest ones to the host."""
        key = id(newest)
        with self.lock:
            self.sizes.pop(key, None)  # a deleted object had the same id()
            self.sizes = {other: each for other, each in self.sizes.items() if each[0]() is not None}
            full = sum(number for _, number in self.sizes.values()) + size - MOST_DEVICE_BYTES
            old = []
            for reference, number in self.sizes.values():
                if full <= 0:
                    break
                old.append(reference())
                full -= number
            self.sizes[key] = weakref.ref(newest), size
        for recorded in old:
            if recorded is not None:
                recorded.to_host()

    def remove(self, key: int) -> None:
        """Forget an object whose weights were copied to the host."""
        with self.lock:
            self.sizes.pop(key, None)


_device_memory = _DeviceMemory()
