"""Prompts: the beginnings of texts that a language model continues. Input of search() without a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.batch_rows import BatchRows
from regard.errors import ArgumentError, message

__all__ = ["Prompts"]


@dataclass(frozen=True, eq=False)
class Prompts(BatchRows):
    """The prompts of a batch, which a language model continues. All have the same number of tokens.

    The same number is needed because all rows of the decoder state are at the same position.

    tokens: (B, P), P at least 1. The first token of each row is BOS, or EOS for a model that was trained on
        continuous text.
    index: (B,), the index of each prompt in the data. Sampling seeds its random numbers with it.

    >>> from regard.data.batch import BOS
    >>> from regard.decoding import Greedy, Prompts, Rules, search
    >>> from regard.models import build_language_model
    >>> model = build_language_model("lstm", 9, width=4)
    >>> prompts = Prompts.collate([[BOS, 7, 8], [BOS, 4, 5]])
    >>> hypotheses = search(model, prompts, Greedy(Rules(minimum=2, maximum=2)), look=None)
    >>> [len(best.tokens) for best, *_ in hypotheses]
    [2, 2]
    """

    tokens: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def collate(cls, rows: Sequence[Sequence[int]], index: Sequence[int] | None = None) -> Prompts:
        """Return Prompts with the given token ids. All rows must have the same length.

        rows: the token ids of each prompt.
        index: the index of each prompt in the data. Default: 0, 1, ...
        """
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1 or lengths == [0]:
            problem = f"the prompts have {lengths[0]} to {lengths[-1]} tokens" if lengths[-1] else "no token"
            expected = "prompts of the same length, each with BOS or EOS as its first token"
            hint = "use one batch for each length"
            raise ArgumentError(message("Prompts.collate()", problem, expected=expected, hint=hint))
        width = lengths[0] if lengths else 1
        tokens = torch.tensor([list(row) for row in rows], dtype=torch.long).reshape(len(rows), width)
        return cls(tokens, torch.as_tensor(range(len(rows)) if index is None else index))
