"""Sentence pairs as tensors: batches of pairs of similar lengths, and the entries of their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.aligner.lexicon import SHIFT, sorted_keys

__all__ = ["Batch", "Side", "batches_of", "renumber"]

BATCH_CELLS = 300_000
"""Maximum number of (source word, target word) positions in a batch, with padding."""

FEWEST = 32
"""A batch with fewer pairs is filled with pairs that are up to a third longer."""


@dataclass
class Batch:
    """Sentence pairs of similar lengths.

    index: (B,), the index of each pair.
    source_BS, target_BT: the numbers of the words, 0 for padding.
    source_mask, target_mask: False for padding.
    cells_BTS: the entry of each pair of words in the lexicon, 0 for padding.
    posteriors: those of the previous iteration, of both directions: (B, T, S) and (B, S, T), float16.
    """

    index: NDArray[numpy.int64]
    source_BS: Tensor
    target_BT: Tensor
    source_mask: Tensor
    target_mask: Tensor
    cells_BTS: Tensor
    posteriors: tuple[Tensor, Tensor] | None = None


Side = tuple[NDArray[numpy.int32], NDArray[numpy.int64]]
"""The numbers of all words, and the length of each sentence."""


def batches_of(source: Side, target: Side) -> tuple[list[Batch], Tensor]:
    """Return the batches of all pairs in which no side is empty, and the sorted keys of their lexicon.

    >>> sides = [(numpy.array([0, 1, 0], numpy.int32), numpy.array([2, 1])) for _ in range(2)]
    >>> batches, keys = batches_of(*sides)
    >>> [batch.cells_BTS.tolist() for batch in batches], keys.tolist() == [0, 1, 2**32, 2**32 + 1]
    ([[[[1, 0], [0, 0]], [[1, 3], [2, 4]]]], True)
    """
    starts = [numpy.concatenate(([0], numpy.cumsum(lengths))) for _, lengths in (source, target)]
    batches, keys = list[Batch](), list[Tensor]()
    for index in _groups(source[1], target[1]):
        padded = [_padded(side, start, index) for side, start in zip((source, target), starts, strict=True)]
        (source_BS, source_mask), (target_BT, target_mask) = padded
        key_BTS = (source_BS.long()[:, None] << SHIFT) + target_BT[:, :, None]
        key_BTS[~(target_mask[:, :, None] & source_mask[:, None])] = -1
        own, cells = torch.unique(key_BTS, return_inverse=True)
        batches.append(Batch(index, source_BS, target_BT, source_mask, target_mask, cells.int()))
        keys.append(own)
    if not batches:
        return batches, torch.zeros(0, dtype=torch.int64)
    union = sorted_keys([own[1:] if int(own[0]) < 0 else own for own in keys])
    for batch, own in zip(batches, keys, strict=True):
        number = (torch.searchsorted(union, own) + 1) * (own >= 0)
        batch.cells_BTS = torch.index_select(number.int(), 0, batch.cells_BTS.reshape(-1)).view(
            batch.cells_BTS.shape
        )
    return batches, union


def renumber(batches: list[Batch], places: Tensor) -> None:
    """Renumber the entries of batches: key number n of the lexicon is now key number places[n]."""
    number = torch.cat((torch.zeros(1), places + 1)).int()
    for batch in batches:
        entries = torch.index_select(number, 0, batch.cells_BTS.reshape(-1))
        batch.cells_BTS = entries.view(batch.cells_BTS.shape)


def _groups(sources: NDArray[numpy.int64], targets: NDArray[numpy.int64]) -> Iterator[NDArray[numpy.int64]]:
    """Yield the indices of the pairs of each batch, sorted by their lengths."""
    order = numpy.lexsort((targets, sources))
    order = order[(sources[order] > 0) & (targets[order] > 0)]
    begin, longest = 0, 0
    lengths = list(zip(sources[order].tolist(), targets[order].tolist(), strict=True))
    for end, (source, target) in enumerate(lengths):
        count, first = end - begin, lengths[begin]
        longest = max(longest, target)
        full = (count + 1) * source * longest > BATCH_CELLS
        differs = source > first[0] or target > first[1] + 2
        too_long = source > 1.3 * first[0] + 1 or longest > 1.5 * first[1] + 4
        if count and (full or too_long or (differs and count >= FEWEST)):
            yield order[begin:end]
            begin, longest = end, target
    if len(order):
        yield order[begin:]


def _padded(side: Side, starts: NDArray[numpy.int64], index: NDArray[numpy.int64]) -> tuple[Tensor, Tensor]:
    """Return the numbers of the words of some sentences, padded with 0, and the mask of the words."""
    flat, lengths = side
    places = numpy.arange(lengths[index].max())
    mask = places < lengths[index][:, None]
    words = numpy.where(mask, flat[numpy.minimum(starts[index][:, None] + places, len(flat) - 1)], 0)
    return torch.from_numpy(words), torch.from_numpy(mask)
