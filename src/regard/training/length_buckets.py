"""Length buckets: batches are padded to a few shapes, so that a model is compiled or captured few times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch

__all__ = ["Shapes"]


@dataclass(frozen=True)
class Shapes:
    """The batch shapes for `tokens` tokens per batch and sentences of at most `longest` tokens, EOS included.

    sentences: the number of rows of every batch, if tokens is None.

    Batches(..., rounded=shapes.lengths) yields batches with one shape per length.

    >>> Shapes(tokens=1024, longest=100).lengths
    (8, 16, 24, 32, 48, 64, 96, 128)
    """

    tokens: int | None
    longest: int
    sentences: int = 1

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that batches are padded to: 8, 16, 24, 32, and then two for each doubling."""
        lengths = [8]
        while lengths[-1] < self.longest:
            last = lengths[-1]
            step = last * 3 // 2 if last.bit_count() == 1 else last * 4 // 3
            lengths.append(last + 8 if last < 32 else step)
        return tuple(lengths)

    @property
    def most(self) -> int:
        """Maximum number of shapes: subword sampling can make a batch longer than planned."""
        return 4 * len(self.lengths)

    def _counts(self, length: int) -> Iterator[int]:
        """Yield the numbers of rows of batches of this length, and of shorter ones in descending length."""
        if self.tokens is None:
            yield self.sentences
            return
        # A batch that became longer after it was planned has as many rows as a shorter one.
        yield from (-(-self.tokens // each) for each in reversed(self.lengths) if each <= length)

    def filled(self, batch: Batch) -> Batch:
        """Pad a batch to the next length, and to the number of rows of that length with empty rows."""
        need = max(batch.source.shape[1], batch.target.shape[1] - 1)
        length = next((each for each in self.lengths if each >= need), need)
        rows = next((each for each in self._counts(length) if each >= len(batch)), len(batch))
        more = rows - len(batch)
        source = _grown(batch.source, rows, length)
        target = _grown(batch.target, rows, length + 1)
        if more:
            # An empty row: the source is EOS alone, and the target has no label.
            source[-more:, 0] = EOS
            target[-more:, 0] = BOS
        ones, zeros = torch.ones(more, dtype=torch.long), torch.zeros(more, dtype=torch.long)
        return Batch(
            source,
            torch.cat((batch.source_lengths, ones)),
            target,
            torch.cat((batch.target_lengths, zeros)),
            torch.cat((batch.index, zeros)),
        )


def _grown(tokens: Tensor, rows: int, length: int) -> Tensor:
    grown = torch.full((rows, length), PAD, dtype=tokens.dtype)
    grown[: tokens.shape[0], : tokens.shape[1]] = tokens
    return grown
