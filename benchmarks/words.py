"""Split training text into words as in the test text, and count unknown words of the test text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Unknown", "Words"]

WORD = re.compile(
    r"\w+(?=n't\b)|n't\b|'(?:s|m|d|re|ve|ll)\b"  # do n't, olaf 's: as English test texts write them
    r"|\w+(?:-\w+)*|[^\w\s]",
    re.IGNORECASE,
)
QUOTES = str.maketrans("‘’“”", "''\"\"")


@dataclass(frozen=True)
class Unknown:
    """Unknown words of a text in per cent. running: of all its words. different: of its distinct words."""

    running: float
    different: float


@dataclass(frozen=True)
class Words:
    """How text is split into words. tokenise: separate punctuation. lowercase: lowercase the words.

    >>> Words(tokenise=True, lowercase=True).of("Don’t ask Olaf's EU-friends, please.")
    ['do', "n't", 'ask', 'olaf', "'s", 'eu-friends', ',', 'please', '.']
    """

    tokenise: bool
    lowercase: bool

    def given(self, line: str) -> list[str]:
        """Return the words of a test text, split at spaces; typographic quotes become straight."""
        return (line.lower() if self.lowercase else line).translate(QUOTES).split()

    def of(self, line: str) -> list[str]:
        """Return the words of a training text."""
        words = self.given(line)
        return WORD.findall(" ".join(words)) if self.tokenise else words

    def unknown(self, lines: Iterable[str], trained: Iterable[str]) -> Unknown:
        """Return how many words of a test text do not occur in the training text.

        >>> Words(tokenise=True, lowercase=True).unknown(["no , no man"], ["No, Tom."])
        Unknown(running=25.0, different=33.33)
        """
        vocabulary = {word for line in trained for word in self.of(line)}
        words = [word for line in lines for word in self.given(line)]
        shares = [
            round(100 * sum(word not in vocabulary for word in some) / max(len(some), 1), 2)
            for some in (words, set(words))
        ]
        return Unknown(*shares)
