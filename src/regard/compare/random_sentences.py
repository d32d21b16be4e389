"""Random sentences, for measurements of models that are not trained."""

from __future__ import annotations

import torch

from regard.data.batch import Batch

__all__ = ["LENGTH", "ROWS", "VOCABULARY", "random_batch"]

VOCABULARY, FIRST = 500, 4
"""Vocabulary size, and the first token id that is not a special token."""

ROWS, LENGTH = 4, 24
"""Number and length of the sentences."""


def random_batch(seed: int, rows: int = ROWS, length: int = LENGTH, vocabulary: int = VOCABULARY) -> Batch:
    """Return pairs of random sentences of one length, EOS included.

    >>> random_batch(0).source.shape
    torch.Size([4, 24])
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST, vocabulary, (2, rows, length - 1), generator=generator).tolist()
    return Batch.collate(*ids)
