"""TextBatch: windows of a text, or whole documents, as padded token ids; the input of language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import PAD, Batch
from regard.data.batch_rows import BatchRows
from regard.errors import ArgumentError, message

__all__ = ["TextBatch"]


@dataclass(frozen=True, eq=False)
class TextBatch(BatchRows):
    """A batch of windows of a text, or of whole documents, for language models, padded with PAD.

    Each position has an input token and a target, the next token.

    inputs: (B, T), the tokens to read.
    targets: (B, T), the tokens to predict. PAD at padding, and at positions that are not counted in the loss.
    lengths: (B,), number of input tokens of each row, without padding.
    index: (B,), where each row is in the text. In the layout "documents" (each line is a document), it is the
        index of the line. In the layout "continuous" (all lines are one text), it is the position of the
        first target in the text.
    carried: whether each row continues the same row of the previous batch. If True, a recurrent model
        continues from its last state. If False, it starts from the initial state.

    >>> batch = TextBatch.collate([[7, 8], [9]])
    >>> batch.inputs, batch.targets, batch.count
    (tensor([[2, 7, 8],
            [2, 9, 3]]), tensor([[7, 8, 3],
            [9, 3, 0]]), 5)
    >>> batch.select(slice(1, 2)).repeat(2).index
    tensor([1, 1])
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor
    index: Tensor
    carried: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def count(self) -> int:
        """Number of targets that are counted in the loss. On a GPU, this waits for pending kernels."""
        return int((self.targets != PAD).sum())

    @classmethod
    def collate(cls, documents: Sequence[Sequence[int]], index: Sequence[int] | None = None) -> Self:
        """Add BOS and EOS to lists of token ids and pad them to a batch.

        documents: the token ids of each document.
        index: the index of each document in its text; the default is 0, 1, ...
        """
        return cls.from_batch(Batch.collate(documents, documents, index))

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """Return the target sentences of a Batch as a TextBatch, to train a language model on them."""
        return cls(batch.inputs, batch.labels, batch.target_lengths, batch.index)

    def padded_to(self, rows: int, length: int) -> Self:
        """Return a copy that is padded to a given batch size and to a given length.

        rows: number of rows of the copy. All targets of an added row are PAD.
        length: number of tokens of each row, with padding.

        >>> TextBatch.collate([[7]]).padded_to(2, 3).targets
        tensor([[7, 3, 0],
                [0, 0, 0]])
        """
        more, longer = rows - len(self), length - self.inputs.shape[1]
        if more < 0 or longer < 0:
            problem = f"rows={rows} and length={length} are too small"
            expected = f"at least {len(self)} rows and length {self.inputs.shape[1]}"
            raise ArgumentError(message("TextBatch.padded_to()", problem, expected=expected))
        grown = self.add_rows(more)
        grown.lengths[len(self) :] = 1
        inputs, targets = (pad(each, (0, longer), value=PAD) for each in (grown.inputs, grown.targets))
        return replace(grown, inputs=inputs, targets=targets)
