"""Shapes: a few sizes that batches are padded to, so that a compiled model sees each of them once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch

__all__ = ["Shapes"]


@dataclass(frozen=True)
class Shapes:
    """The sizes of batches of `tokens` tokens whose longest side has at most `longest`, EOS counted.

    Batches that are planned by these lengths, Batches(..., rounded=shapes.lengths), have one shape for each.

    >>> Shapes(tokens=1024, longest=100).lengths
    (8, 16, 24, 32, 48, 64, 96, 128)
    """

    tokens: int
    longest: int

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that batches are padded to: 8, 16, 24, 32, and then two for each doubling."""
        found = [8]
        while found[-1] < self.longest:
            last = found[-1]
            found.append(last + 8 if last < 32 else last * 3 // 2 if last.bit_count() == 1 else last * 4 // 3)
        return tuple(found)

    @property
    def most(self) -> int:
        """How many shapes there may be: words that are cut anew each time can make a batch longer."""
        return 4 * len(self.lengths)

    def filled(self, batch: Batch) -> Batch:
        """The batch with padding up to the next of these lengths, and rows of nothing up to its rows."""
        need = max(batch.source.shape[1], batch.target.shape[1] - 1)
        length = next((each for each in self.lengths if each >= need), need)
        # A batch that grew after it was planned has the rows of a shorter one.
        counts = (-(-self.tokens // each) for each in reversed(self.lengths) if each <= length)
        rows = next((each for each in counts if each >= len(batch)), len(batch))
        more = rows - len(batch)
        source = _grown(batch.source, rows, length)
        target = _grown(batch.target, rows, length + 1)
        if more:
            # A row of nothing is a source that ends at once, and a target with nothing to say.
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
