"""Report words (or characters) that are not in the vocabulary of a model, with their line numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from regard.data.line_io import say
from regard.errors import printable
from regard.viewing.result import Result

__all__ = ["UnknownWords"]

NAMED = 8
"""Maximum number of unknown words that the report lists for each side (source or target)."""

LONGEST = 40
"""Maximum number of characters of a word in the report. Longer words are truncated."""


@dataclass
class UnknownWords:
    """Collects the unknown words of many lines, for a report. It stores only the first few words.

    named: the first unknown words, as (line number, word).
    count: the number of unknown words.
    lines: the number of lines that have unknown words.
    unlisted: the number of unknown words that are not in `named`.
    place: what the line numbers count, for the report: "line" or, for example, "question".

    The keys of the four dicts are pairs such as ("source word", False). The first element says whether the
    entry is for the source or the target, and for words or characters; the second says whether the tokenizer
    encodes unknown characters as bytes.

    >>> from regard.decoding import Scored
    >>> words = UnknownWords()
    >>> words.add(3, Scored("the aardvark", "", unknown=("aardvark",)))
    >>> print(*words.report())
    1 source word is not in the vocabulary of the model: 'aardvark' (line 3)
    """

    named: dict[tuple[str, bool], list[tuple[int, str]]] = field(default_factory=dict)
    count: dict[tuple[str, bool], int] = field(default_factory=dict)
    lines: dict[tuple[str, bool], int] = field(default_factory=dict)
    unlisted: dict[tuple[str, bool], int] = field(default_factory=dict)
    place: str = "line"

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
        if words:
            key = (name, bytewise)
            listed = self.named.setdefault(key, [])
            names = {word for _, word in listed}
            new = [word for word in dict.fromkeys(words) if word not in names][: NAMED - len(listed)]
            listed += [(line, word) for word in new]
            names.update(new)
            self.count[key] = self.count.get(key, 0) + len(words)
            self.unlisted[key] = self.unlisted.get(key, 0) + sum(word not in names for word in words)
            self.lines[key] = self.lines.get(key, 0) + 1

    def report(self) -> Iterator[str]:
        """Yield a sentence with the unknown source words, and one with the unknown target words, if any."""
        for (name, bytewise), listed in self.named.items():
            count = self.count[name, bytewise]
            which = ", ".join(f"{_shown(word)} ({self.place} {line:,})" for line, word in listed)
            more, lines = self.unlisted[name, bytewise], self.lines[name, bytewise]
            rest = f", and {more:,} more" if more else ""
            rest += f"; in {lines:,} {self.place}s" if count > len(listed) and lines > 1 else ""
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
