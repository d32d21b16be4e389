"""Shapes: a few sizes that batches are padded to, so that a compiled model sees each of them once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.batch import BOS, EOS, PAD, Batch

__all__ = ["Shapes"]


@dataclass(frozen=True)
class Shapes:
    """The sizes of batches of `tokens` tokens whose longest side is at most `longest`: one for each length.

    >>> Shapes(tokens=1024, longest=100).lengths
    (8, 16, 24, 32, 48, 64, 96, 128)
    """

    tokens: int
    longest: int

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that batches are padded to: 8, 16, 24, 32, and then two for each doubling."""
        found = [8, 16, 24, 32]
        while found[-1] < self.longest:
            found.append(found[-1] * 3 // 2 if found[-1].bit_count() == 1 else found[-1] * 4 // 3)
        return tuple(length for length in found if length <= max(self.longest, 8) * 2)

    def filled(self, batch: Batch) -> Batch:
        """The batch with padding up to the next of these lengths, and rows of nothing up to its rows."""
        need = max(batch.source.shape[1], batch.target.shape[1] - 1)
        length = next((each for each in self.lengths if each >= need), need)
        rows = max(self.tokens // length, len(batch))
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
