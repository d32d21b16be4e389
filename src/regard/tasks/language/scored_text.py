"""ScoredText: a line of text with the log-probability of each of its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from regard.viewing import Seen, Site

__all__ = ["ScoredText"]


@dataclass(frozen=True, eq=False)
class ScoredText:
    """A line of text, scored by a language model.

    text: the line. tokens: its token ids, with EOS at the end. pieces: the text of each token.
    token_scores: log p(x_t | x_1 ... x_t-1) of each token.
    attention: for each attention layer (site), the weights (H, T, T). Row t is the attention while token t is
        predicted; column s is input s, which is token s - 1, and column 0 the token before the text.
    unknown: the words that the vocabulary does not cover.
    word_numbers: for each token, the index of its word; -1 for EOS. first_piece: the token before the text.

    >>> scored = ScoredText("a b", (4, 5, 3), ("a", "b", "</s>"), (-1.0, -0.5, -1.5))
    >>> scored.log_probability, round(scored.perplexity, 4)
    (-3.0, 2.7183)
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    token_scores: tuple[float, ...]
    attention: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    unknown: tuple[str, ...] = ()
    word_numbers: tuple[int, ...] = field(default=(), kw_only=True)
    first_piece: str = field(default="<s>", kw_only=True)

    @property
    def log_probability(self) -> float:
        """The log-probability of the line, with its end: the sum of the token scores."""
        return sum(self.token_scores)

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp of minus the mean of the token scores; inf if it overflows."""
        mean = -self.log_probability / len(self.token_scores)
        return math.exp(mean) if mean < 700 else math.inf

    def seen(self, title: str = "") -> Seen:
        """Return the recorded attention as arrays with their tokens, to draw, explore or save.

        Rows are the predicted tokens. Columns are the input tokens: the token before the text, then all
        tokens but the last. title: the title of the pictures. Default: the text.

        >>> import numpy
        >>> weights = {"decoder.0.self": numpy.array([[[1.0, 0.0], [0.5, 0.5]]])}
        >>> seen = ScoredText("a", (4, 3), ("a", "</s>"), (-1.0, -0.5), weights).seen()
        >>> seen.site("decoder.0.self").columns
        ('<s>', 'a')
        """
        numbers = self.word_numbers or tuple(range(len(self.pieces)))
        columns, column_numbers = (self.first_piece, *self.pieces[:-1]), (-1, *numbers[:-1])
        sites = tuple(
            Site(name, weights, self.pieces, columns, None, numbers, column_numbers)
            for name, weights in self.attention.items()
        )
        words = ", ".join(map(repr, dict.fromkeys(self.unknown[:5])))
        notes = (f"not in the vocabulary: {words}",) if words else ()
        return Seen(sites, (), self.pieces, (), numbers, title or self.text, notes, self.log_probability)

    def to_dict(self, attention: bool = False) -> dict[str, Any]:
        """Return the fields as a dict for JSON. attention: include the attention weights, as lists."""
        fields: dict[str, Any] = {
            "text": self.text,
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "tokens": list(self.tokens),
            "pieces": list(self.pieces),
            "token_scores": list(self.token_scores),
            "unknown": list(self.unknown),
        }
        if attention:
            fields["attention"] = {site: weights.tolist() for site, weights in self.attention.items()}
        return fields
