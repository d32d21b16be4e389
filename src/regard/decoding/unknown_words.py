"""Report words (or characters) that are not in the vocabulary of a model, with their line numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from regard.data.line_io import say
from regard.errors import printable
from regard.viewing.result import Result

NAMED = 8
"""Maximum number of unknown words that the report lists for each side (source or target)."""

LONGEST = 40
"""Maximum number of characters of a word in the report. Longer words are truncated."""


@dataclass
class _Unknown:
    """The unknown words of one kind: their number, their lines, the first ones, the number of others."""

    count: int = 0
    lines: int = 0
    listed: dict[str, int] = field(default_factory=dict)
    unlisted: int = 0


class UnknownWords:
    """Collects the unknown words of many lines, for a report. It stores only the first few words.

    place: what the line numbers count, for the report: "line" or, for example, "question".

    >>> from regard.decoding import Scored
    >>> words = UnknownWords()
    >>> words.add(3, Scored("the aardvark", "", unknown=("aardvark",)))
    >>> print(*words.report())
    1 source word is not in the vocabulary of the model: 'aardvark' (line 3)
    """

    def __init__(self, place: str = "line"):
        self.place = place
        self._kinds: dict[tuple[str, bool], _Unknown] = {}

    def add(self, line: int, result: Result) -> None:
        """Add the unknown words of a result.

        line: the line number of its input, from 1.
        """
        for name, words, bytewise in result.unknown_words():
            self.add_words(line, name, words, bytewise)

    def add_words(self, line: int, name: str, words: Sequence[str], bytewise: bool = False) -> None:
        """Add the unknown words of a line.

        line: the line number, from 1.
        name: what the words are, for example "word" or "source word".
        words: the unknown words.
        bytewise: whether the tokenizer encodes unknown characters as bytes.
        """
        if not words:
            return
        own = self._kinds.setdefault((name, bytewise), _Unknown())
        own.count, own.lines = own.count + len(words), own.lines + 1
        for word in words:
            if word in own.listed or len(own.listed) < NAMED:
                own.listed.setdefault(word, line)
            else:
                own.unlisted += 1

    def report(self) -> Iterator[str]:
        """Yield a sentence with the unknown source words, and one with the unknown target words, if any."""
        for (name, bytewise), own in self._kinds.items():
            count, lines = own.count, own.lines
            which = ", ".join(f"{_shown(word)} ({self.place} {line:,})" for word, line in own.listed.items())
            rest = f", and {own.unlisted:,} more" if own.unlisted else ""
            rest += f"; in {lines:,} {self.place}s" if count > len(own.listed) and lines > 1 else ""
            if bytewise:
                has = f"{count:,} {name}s have" if count > 1 else f"1 {name} has"
                problem = f"{has} characters that are not in the vocabulary of the model (encoded as bytes)"
            else:
                many = f"{count:,} {name}s are" if count > 1 else f"1 {name} is"
                problem = f"{many} not in the vocabulary of the model"
            yield f"{problem}: {which}{rest}"

    def say(self) -> None:
        """Write the sentences of report() to standard error."""
        for line in self.report():
            say(line)


def _shown(word: str) -> str:
    truncated = word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"
    return f"'{printable(truncated)}'"
