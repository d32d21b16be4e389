"""The models and batches of benchmarks/training_speed.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.data.batch import EOS, Batch
from regard.models.bahdanau import Bahdanau
from regard.models.base import Model
from regard.models.transformer import Transformer

__all__ = ["CASES", "DROPOUT", "SMOOTHING", "Case"]

DROPOUT, SMOOTHING = 0.1, 0.1


@dataclass(frozen=True)
class Case:
    """A model, and the size of its batches.

    model: "transformer" (base, with one table of embeddings) or "bahdanau" (embeddings of 620, states of
        1,000).
    words: vocabulary size.
    rows, length: number of sentences of a batch, and their number of tokens, EOS included.
    """

    model: str
    words: int
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Number of target tokens of a batch."""
        return self.rows * self.length

    def build(self, dropout: float = DROPOUT, device: str = "cuda") -> Model:
        """Return the model with random weights. Bahdanau's model has no dropout."""
        torch.manual_seed(0)
        with torch.device(device):
            if self.model == "transformer":
                return Transformer(self.words, self.words, "base", tie="all", dropout=dropout)
            return Bahdanau(self.words, self.words, 1000, embedding=620)

    def batch(
        self, seed: int, *, ragged: bool = False, rows: int | None = None, length: int | None = None
    ) -> Batch:
        """Return random pairs of the full length; ragged: of random lengths up to it."""
        generator = torch.Generator().manual_seed(seed)
        rows, length = rows or self.rows, length or self.length
        lengths = torch.full((2, rows), length - 1)
        if ragged:
            lengths = torch.randint(0, length, (2, rows), generator=generator)
        pairs = [
            [
                torch.randint(EOS + 1, self.words, (size,), generator=generator).tolist()
                for size in side.tolist()
            ]
            for side in lengths
        ]
        source, target = pairs
        return Batch.collate(source, target)


CASES = {
    "transformer-512x64": Case("transformer", 32000, 512, 64),
    "transformer-128x32": Case("transformer", 32000, 128, 32),
    "recurrent-80x30": Case("bahdanau", 30000, 80, 30),
}
