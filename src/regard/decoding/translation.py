"""Translation: a line and what a model made of it, with its scores, its attention and its alignment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.decoding.alignment import Alignment, align, averaged

__all__ = ["Passage", "Scored", "Translation"]


@dataclass(frozen=True, eq=False)
class Passage:
    """Source and target as a model read and said them at one time, token by token.

    pieces: the text of each token, "</s>" for EOS; words: the number of its word in the line, -1 for EOS.
    token_scores: one for each target piece. attention: by site, a row for each target piece and a column for
    each source piece at cross sites.
    """

    source_pieces: tuple[str, ...]
    source_words: tuple[int, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    token_scores: tuple[float, ...]
    attention: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Scored:
    """A source and a target, what the model thinks of them together, and what it looked at.

    text: the target. passages: one, or several where the source was too long to be read at once; the other
    fields join them. notes: what had to be done to the line, in words.

    >>> import torch
    >>> from regard.decoding.translation import Passage, Scored
    >>> seen = {"decoder.cross": torch.tensor([[0.9, 0.1], [0.2, 0.8]])}
    >>> passage = Passage(("고양이", "</s>"), (0, -1), ("cat", "</s>"), (0, -1), (-0.5, -0.25), seen)
    >>> scored = Scored("고양이", "cat", (passage,))
    >>> scored.score, str(scored.alignment)
    (-0.75, '0-0')
    """

    source: str
    text: str
    passages: tuple[Passage, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The log-probability of the target, EOS counted."""
        return sum(self.token_scores)

    @property
    def token_scores(self) -> tuple[float, ...]:
        """The log-probability of each piece of the target."""
        return self._through("token_scores")

    @property
    def pieces(self) -> tuple[str, ...]:
        """The tokens of the target as text, "</s>" where the model ended: the rows of the attention."""
        return self._through("pieces")

    @property
    def source_pieces(self) -> tuple[str, ...]:
        """The tokens of the source as text, "</s>" where it ended: the columns of the attention."""
        return self._through("source_pieces")

    @property
    def attention(self) -> dict[str, Tensor]:
        """By site, weights ([H,] T, S); 0 between passages, which did not see each other."""
        sites = self.passages[0].attention if self.passages else {}
        if len(self.passages) == 1:
            return sites
        return {site: _diagonal([each.attention[site] for each in self.passages]) for site in sites}

    @property
    def alignment(self) -> Alignment | None:
        """Which source word each target word looked at most, all layers and heads together.

        None where nothing was looked at, or the model does not look at its source.
        """
        crossing = any(name.endswith("cross") for each in self.passages for name in each.attention)
        return self.align() if crossing or not self.passages else None

    def align(self, site: str = "*cross", head: int | None = None) -> Alignment:
        """The alignment that some sites, with * as wildcard, and one of their heads, or all, give."""
        return Alignment.joined(
            align(averaged(each.attention, site, head), each.source_words, each.words)
            for each in self.passages
        )

    def _through(self, name: str) -> tuple[Any, ...]:
        return tuple(value for each in self.passages for value in getattr(each, name))


@dataclass(frozen=True, eq=False)
class Translation(Scored):
    """A line and its translation, with scores, attention, alignment and notes; `others` are the next best.

    ranking: what it was ranked by, with penalties, added up over passages. others: not for a line that was
    translated in parts.

    >>> from regard.decoding import Translation
    >>> Translation("", "").score
    0
    """

    ranking: float = 0.0
    others: tuple[Translation, ...] = ()


def _diagonal(blocks: list[Tensor]) -> Tensor:
    """Blocks ([H,] t, s) along the diagonal of one matrix, 0 elsewhere."""
    rows, columns = (sum(block.shape[size] for block in blocks) for size in (-2, -1))
    whole = torch.zeros(*blocks[0].shape[:-2], rows, columns)
    row = column = 0
    for block in blocks:
        whole[..., row : row + block.shape[-2], column : column + block.shape[-1]] = block
        row, column = row + block.shape[-2], column + block.shape[-1]
    return whole
