"""LabelledBatch: padded texts, or pairs of texts, with their class labels; the input of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import EOS, PAD, Batch
from regard.data.batch_rows import BatchRows
from regard.errors import ArgumentError, message

__all__ = ["NO_LABEL", "LabelledBatch"]

NO_LABEL = -100
"""The label of a text whose class is not known: the default of ignore_index in torch's cross_entropy."""


@dataclass(frozen=True, eq=False)
class LabelledBatch(BatchRows):
    """A batch of texts, or of pairs of texts, with class labels. Texts end with EOS and are padded with PAD.

    first: (B, S), the token ids of the texts, or of the first text of each pair.
    first_lengths: (B,), number of tokens of each text in `first`, including EOS.
    labels: (B,), class indices from 0; NO_LABEL if the class is not known.
    index: (B,), index of each text in its dataset.
    second: (B, T), the token ids of the second text of each pair; None if the texts are not pairs.
    second_lengths: (B,), number of tokens of each text in `second`, including EOS, or None.

    >>> batch = LabelledBatch.collate([[7, 8], [9]], labels=[1, 0])
    >>> batch.first, batch.labels, batch.second
    (tensor([[7, 8, 3],
            [9, 3, 0]]), tensor([1, 0]), None)
    >>> batch.select(torch.tensor([1])).repeat(2).first_lengths
    tensor([2, 2])
    """

    first: Tensor
    first_lengths: Tensor
    labels: Tensor
    index: Tensor
    second: Tensor | None = None
    second_lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def collate(
        cls,
        firsts: Sequence[Sequence[int]],
        seconds: Sequence[Sequence[int]] | None = None,
        labels: Sequence[int] | None = None,
        index: Sequence[int] | None = None,
    ) -> LabelledBatch:
        """Add EOS to lists of token ids, and pad them to a batch.

        firsts: the token ids of each text, or of the first text of each pair.
        seconds: the token ids of the second text of each pair, or None if the texts are not pairs.
        labels: class indices, or None for inference: every label is NO_LABEL.
        index: index of each text in its dataset; the default is 0, 1, ...
        """
        for name, rows in (("seconds", seconds), ("labels", labels), ("index", index)):
            if rows is not None and len(rows) != len(firsts):
                problem = f"there are {len(firsts)} firsts and {len(rows)} {name}"
                raise ArgumentError(message("LabelledBatch.collate()", problem, expected="the same number"))
        batch = Batch.collate(firsts, seconds, index)
        known = torch.full((len(firsts),), NO_LABEL) if labels is None else torch.as_tensor(labels)
        return cls.of_batch(batch, known, pairs=seconds is not None)

    @classmethod
    def of_batch(cls, batch: Batch, labels: Tensor, pairs: bool) -> LabelledBatch:
        """Create a LabelledBatch from a Batch. The source becomes the first text.

        labels: (B,), class indices.
        pairs: if True, the target becomes the second text, without BOS. If False, the target is ignored.
        """
        return cls(
            batch.source,
            batch.source_lengths,
            labels.to(torch.long),
            batch.index,
            batch.labels if pairs else None,
            batch.target_lengths if pairs else None,
        )

    def padded_to(self, rows: int, length: int, second_length: int | None = None) -> LabelledBatch:
        """Return a copy that is padded to a given batch size and to given lengths.

        rows: number of rows of the copy. An added row is an empty text (EOS alone) with the label NO_LABEL.
        length: number of tokens of each text, including EOS and padding.
        second_length: number of tokens of the second text of each pair, including EOS and padding. Default:
            `length`.

        Padding limits the number of different batch shapes, for CUDA graphs and torch.compile. It also gives
        one common shape to the batches of models that are trained together with different random seeds.
        """
        longest = max(self.first.shape[1], 0 if self.second is None else self.second.shape[1])
        more = rows - len(self)
        short = self.second is not None and second_length is not None and second_length < self.second.shape[1]
        if second_length is not None:
            longest = self.first.shape[1]
        if more < 0 or length < longest or short:
            problem = f"rows={rows} and length={length} are too small"
            expected = f"at least {len(self)} rows and length {longest}"
            raise ArgumentError(message("LabelledBatch.padded_to()", problem, expected=expected))

        grown = self.add_rows(more)

        def padded(tokens: Tensor, length: int = length) -> Tensor:
            tokens = pad(tokens, (0, length - tokens.shape[1]), value=PAD)
            tokens[len(self) :, 0] = EOS
            return tokens

        grown.labels[len(self) :] = NO_LABEL
        grown.first_lengths[len(self) :] = 1
        if grown.second is None or grown.second_lengths is None:
            return replace(grown, first=padded(grown.first))
        grown.second_lengths[len(self) :] = 1
        return replace(grown, first=padded(grown.first), second=padded(grown.second, second_length or length))
