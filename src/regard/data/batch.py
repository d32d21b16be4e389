"""Batch: source and target sentences as padded token ids, the input of models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch_rows import BatchRows
from regard.errors import ArgumentError, message

__all__ = ["BOS", "EOS", "PAD", "UNK", "Batch"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Ids of the special tokens, the first four of every vocabulary: padding, unknown token, begin of sentence
and end of sentence."""


@dataclass(frozen=True, eq=False)
class Batch(BatchRows):
    """A batch of source sentences with EOS and target sentences with BOS and EOS, padded with PAD.

    source: (B, S), token ids.
    source_lengths: (B,), number of tokens of each source, including EOS.
    target: (B, 1 + T), token ids, starting with BOS.
    target_lengths: (B,), number of tokens of each target, including EOS but not BOS.
    index: (B,), position of each sample in its dataset.

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
        """Decoder input for teacher forcing, (B, T): `target` without its last column."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """Tokens to predict, (B, T): `target` without its first column, BOS."""
        return self.target[:, 1:]

    @classmethod
    def collate(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]] | None = None,
        index: Sequence[int] | None = None,
    ) -> Batch:
        """Add BOS and EOS to lists of token ids, and pad them to a batch.

        sources: the token ids of each source sentence.
        targets: the token ids of each target sentence. None for inference: each target is only BOS.
        index: position of each sample in its dataset; the default is 0, 1, ...
        """
        source_rows = [[*source, EOS] for source in sources]
        if targets is None:
            target_rows = [[BOS]] * len(source_rows)
        else:
            target_rows = [[BOS, *target, EOS] for target in targets]
        return cls(
            _padded(source_rows),
            torch.tensor([len(row) for row in source_rows]),
            _padded(target_rows),
            torch.tensor([len(row) - 1 for row in target_rows]),
            torch.as_tensor(range(len(source_rows)) if index is None else index),
        )

    def padded_to(self, rows: int, source_length: int, target_length: int) -> Batch:
        """Return a copy that is padded to a given batch size and to given lengths.

        rows: number of rows of the copy. The source of an added row is only EOS. Its labels are PAD, so that
            it does not count in the loss.
        source_length: number of tokens in each row of the source, including EOS and padding.
        target_length: number of tokens in each row of the target, including EOS and padding but not BOS.

        In the example, a batch of 1 row is padded to 2 rows, and its target from 2 tokens to 3.

        >>> Batch.collate([[7]], [[5]]).padded_to(2, 3, 3).target
        tensor([[2, 5, 3, 0],
                [2, 0, 0, 0]])
        """
        more = rows - len(self)
        longer = source_length - self.source.shape[1], target_length + 1 - self.target.shape[1]
        if min(more, *longer) < 0:
            problem = f"rows={rows}, source_length={source_length} and target_length={target_length}"
            lengths = (
                f"source_length >= {self.source.shape[1]} and target_length >= {self.target.shape[1] - 1}"
            )
            expected = f"rows >= {len(self)}, {lengths}"
            raise ArgumentError(message("Batch.padded_to()", problem, expected=expected))
        grown = self.add_rows(more)
        source, target = (
            pad(tokens, (0, columns), value=PAD)
            for tokens, columns in zip((grown.source, grown.target), longer, strict=True)
        )
        source[len(self) :, 0], target[len(self) :, 0] = EOS, BOS
        grown.source_lengths[len(self) :] = 1
        return replace(grown, source=source, target=target)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    lengths = numpy.array([len(row) for row in rows], numpy.int64)
    padded = numpy.full((len(rows), lengths.max(initial=0)), PAD, numpy.int64)
    tokens = numpy.fromiter(itertools.chain.from_iterable(rows), numpy.int64, int(lengths.sum()))
    padded[numpy.arange(padded.shape[1]) < lengths[:, None]] = tokens
    return torch.from_numpy(padded)
