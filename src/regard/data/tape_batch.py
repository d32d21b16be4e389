"""TapeBatch: sequences of input vectors with the bits that a model must output, for algorithmic tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch_rows import BatchRows

__all__ = ["TapeBatch"]


@dataclass(frozen=True, eq=False)
class TapeBatch(BatchRows):
    """A batch of sequences of vectors.

    inputs: (B, T, X), the input vector of each step.
    targets: (B, T, Y), the bits (0 or 1) that the model must output at each step.
    scored: (B, T), bool: whether the output of each step is scored.

    >>> batch = TapeBatch(torch.zeros(2, 3, 5), torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    >>> len(batch), batch.scored_bits, batch.padded_to(3, 4).inputs.shape
    (2, 24, torch.Size([3, 4, 5]))
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return self.inputs.shape[1]

    @property
    def scored_bits(self) -> int:
        """Number of bits that are scored, in all sequences."""
        return int(self.scored.sum()) * self.targets.shape[-1]

    def padded_to(self, rows: int, steps: int) -> TapeBatch:
        """Append steps and rows of zeros, which are not scored."""
        more = steps - self.steps
        if more > 0:
            inputs, targets = (pad(each, (0, 0, 0, more)) for each in (self.inputs, self.targets))
            self = replace(self, inputs=inputs, targets=targets, scored=pad(self.scored, (0, more)))
        return self.add_rows(rows - len(self)) if rows > len(self) else self

    @staticmethod
    def joined(batches: list[TapeBatch]) -> TapeBatch:
        """Return all sequences of several batches as one batch, padded to the same number of steps."""
        steps = max(each.steps for each in batches)
        padded = [each.padded_to(len(each), steps) for each in batches]
        fields = ([getattr(each, name) for each in padded] for name in ("inputs", "targets", "scored"))
        return TapeBatch(*(torch.cat(each) for each in fields))
