"""Hypothesis: one sentence that a search found, with its scores and its attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import EOS, PAD

__all__ = ["Found", "Hypothesis", "ROOM"]

ROOM = 4096
"""Tokens of a sentence that there is room for from the start; for longer ones the tensors grow."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One sentence that was found: its tokens, what each scored, and what was looked at to say it.

    tokens: EOS last where it ended. token_scores: the log-probability that the model gave each of them.
    ranking: what it was ranked by, with penalties. attention: by site; at a cross site weights (T, S), or
    (H, T, S) with heads, a row for each token and a column for each source token, EOS counted on both sides.
    values: by site, the norms (H, S) of what was read.

    >>> from regard.decoding import Hypothesis
    >>> found = Hypothesis((7, 9, 3), (-0.5, -0.25, -0.25), ranking=-0.5)
    >>> found.score, found.finished, found.said
    (-1.0, True, (7, 9))
    """

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]
    ranking: float
    attention: dict[str, Tensor] = field(default_factory=dict, repr=False)
    values: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def score(self) -> float:
        """Its log-probability: the sum of its token scores."""
        return sum(self.token_scores)

    @property
    def finished(self) -> bool:
        """Whether it said that it ends, or was cut because it was long."""
        return self.tokens[-1:] == (EOS,)

    @property
    def said(self) -> tuple[int, ...]:
        """Its tokens without EOS."""
        return self.tokens[:-1] if self.finished else self.tokens


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found, still as tensors: K hypotheses for each of B sentences, the best first.

    tokens: (B, K, L), PAD after the end. token_scores: (B, K, L), 0 after the end. ranking: (B, K), -inf
    where there is no hypothesis.
    """

    tokens: Tensor
    token_scores: Tensor
    ranking: Tensor

    @classmethod
    def empty(cls, sentences: int, each: int, longest: int, device: torch.device) -> Found:
        """Room for so many."""
        return cls(
            torch.full((sentences, each, longest), PAD, device=device),
            torch.zeros(sentences, each, longest, device=device),
            torch.full((sentences, each), -torch.inf, device=device),
        )

    @property
    def lengths(self) -> Tensor:
        """How many tokens each has, (B, K), EOS counted."""
        return (self.tokens != PAD).sum(-1)

    def map(self, change: Callable[[Tensor], Tensor]) -> Found:
        """The same with every tensor changed."""
        return Found(change(self.tokens), change(self.token_scores), change(self.ranking))

    def roomy(self, length: int, longest: int) -> Found:
        """The same with room for at least `length` tokens of each; doubled, up to the longest."""
        room = self.tokens.shape[-1]
        if length <= room:
            return self
        more = (0, min(max(length, 2 * room), longest) - room)
        return Found(pad(self.tokens, more, value=PAD), pad(self.token_scores, more), self.ranking)

    def put(self, rows: Tensor, other: Found) -> None:
        """Write what was found for some sentences, rows (b,), into its place here."""
        length = other.tokens.shape[-1]
        self.tokens[rows, :, :length] = other.tokens
        self.token_scores[rows, :, :length] = other.token_scores
        self.ranking[rows] = other.ranking
