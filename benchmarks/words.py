"""Words: how a training text is cut into the words of a test text, and how many of those it does not have."""

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
    """How much of a text is words that another lacks, in per cent: of all its words, of those that differ."""

    running: float
    different: float


@dataclass(frozen=True)
class Words:
    """How words are found: between spaces, or with punctuation apart; in lower case, or as they are.

    >>> Words(tokenise=True, lowercase=True).of("Don’t ask Olaf's EU-friends, please.")
    ['do', "n't", 'ask', 'olaf', "'s", 'eu-friends', ',', 'please', '.']
    """

    tokenise: bool
    lowercase: bool

    def given(self, line: str) -> list[str]:
        """The words of a test text, which stand between spaces; quotes are made straight."""
        return (line.lower() if self.lowercase else line).translate(QUOTES).split()

    def of(self, line: str) -> list[str]:
        """The words of a training text."""
        words = self.given(line)
        return WORD.findall(" ".join(words)) if self.tokenise else words

    def unknown(self, lines: Iterable[str], trained: Iterable[str]) -> Unknown:
        """How much of a test text is words that the training text does not have.

        >>> Words(tokenise=True, lowercase=True).unknown(["no , no man"], ["No, Tom."])
        Unknown(running=25.0, different=33.33)
        """
        known = {word for line in trained for word in self.of(line)}
        said = [word for line in lines for word in self.given(line)]
        shares = [
            round(100 * sum(word not in known for word in some) / max(len(some), 1), 2)
            for some in (said, set(said))
        ]
        return Unknown(*shares)
