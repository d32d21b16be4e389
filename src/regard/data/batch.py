"""Batch: sentences as numbers, padded to one length; what data makes and models are given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

__all__ = ["BOS", "EOS", "PAD", "UNK", "Batch"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The first four numbers of every vocabulary: padding, unknown, begin and end of a sentence."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Source sentences that end in EOS, and target sentences between BOS and EOS, padded with PAD.

    source: (B, S), source_lengths: (B,), EOS counted. target: (B, 1 + T), BOS first; target_lengths: (B,),
    what there is to predict: EOS counted, BOS not. index: (B,), the numbers of the samples in their data.

    >>> from regard.data.batch import Batch
    >>> batch = Batch.collate([[7, 8], [9]], [[5], [6, 4]])
    >>> batch.source, batch.inputs, batch.labels
    (tensor([[7, 8, 3],
            [9, 3, 0]]), tensor([[2, 5, 3],
            [2, 6, 4]]), tensor([[5, 3, 0],
            [6, 4, 3]]))
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.source)

    @property
    def inputs(self) -> Tensor:
        """What a decoder reads under teacher forcing, (B, T): the target without its last token."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """What it is to say, (B, T): the target without BOS; PAD where there is nothing to say."""
        return self.target[:, 1:]

    @classmethod
    def collate(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]] | None = None,
        index: Sequence[int] | None = None,
    ) -> Batch:
        """Pad sentences of token numbers, given without BOS and EOS, into a batch; targets may be missing."""
        ended = [[*source, EOS] for source in sources]
        begun = [[BOS]] * len(ended) if targets is None else [[BOS, *target, EOS] for target in targets]
        return cls(
            _padded(ended),
            torch.tensor([len(row) for row in ended]),
            _padded(begun),
            torch.tensor([len(row) - 1 for row in begun]),
            torch.as_tensor(range(len(ended)) if index is None else index),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        tensors = (self.source, self.source_lengths, self.target, self.target_lengths, self.index)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    lengths = numpy.array([len(row) for row in rows], numpy.int64)
    padded = numpy.full((len(rows), lengths.max(initial=0)), PAD, numpy.int64)
    tokens = numpy.fromiter(itertools.chain.from_iterable(rows), numpy.int64, int(lengths.sum()))
    padded[numpy.arange(padded.shape[1]) < lengths[:, None]] = tokens
    return torch.from_numpy(padded)
