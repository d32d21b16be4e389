"""ScoredText: a line of text with the log-probability of each of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.data.encoded_text import count_text
from regard.tasks.language.text_result import TextResult, exp_or_inf

__all__ = ["ScoredText"]


@dataclass(frozen=True, eq=False, repr=False)
class ScoredText(TextResult):
    """A line of text with the log-probability of each of its tokens. The last token is EOS.

    For the fields, see TextResult. This example sets the fields text, token_ids, pieces and token_scores:

    >>> scored = ScoredText("a b", (4, 5, 3), ("a", "b", "</s>"), (-1.0, -0.5, -1.5))
    >>> scored, scored.log_probability, round(scored.perplexity, 4)
    (ScoredText('a b', log_probability=-3), -3.0, 2.7183)
    """

    @property
    def words(self) -> int:
        """Number of words of the line, separated by spaces; EOS is not counted."""
        return count_text([self.text]).words

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word: exp(-log_probability / (words + 1)). The end of the line is a word too."""
        return exp_or_inf(-self.log_probability / (self.words + 1))

    def to_dict(self) -> dict[str, Any]:
        """Return TextResult.to_dict(), and also "words", "line_ends" and "word_perplexity".

        "word_perplexity" is exp(-log_probability / (words + line_ends)). "line_ends" is always 1, because the
        text is one line.
        """
        per_word = None if self.word_perplexity == float("inf") else self.word_perplexity
        return {**super().to_dict(), "words": self.words, "line_ends": 1, "word_perplexity": per_word}

    @property
    def facts(self) -> tuple[str, ...]:
        return (f"{super().facts[0]}, per word {self.word_perplexity:.2f}",)
