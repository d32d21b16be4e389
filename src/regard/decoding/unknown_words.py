"""Report words (or characters) that the vocabulary of a model does not cover: which, and in which line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from regard.data.line_io import say
from regard.decoding import Scored
from regard.errors import printable

__all__ = ["UnknownWords"]

NAMED = 8
"""Number of words listed with their line, for each side; the others are counted."""

LONGEST = 40
"""Longer words are truncated."""


@dataclass
class UnknownWords:
    """Collects unknown words over many lines; memory and output are bounded.

    >>> words = UnknownWords()
    >>> words.add(3, Scored("the aardvark", "", unknown=("aardvark",)))
    >>> print(*words.report())
    1 source word is not in the vocabulary of the model: 'aardvark' (line 3)
    """

    named: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def add(self, line: int, pair: Scored) -> None:
        """Add the unknown words of a line; lines are numbered from 1."""
        sides = (("source", pair.units[0], pair.unknown), ("target", pair.units[1], pair.unknown_target))
        for side, unit, unknown in sides:
            if unknown:
                name = f"{side} {unit}"
                kept = self.named.setdefault(name, [])
                kept += [(line, word) for word in unknown[: NAMED - len(kept)]]
                self.count[name] = self.count.get(name, 0) + len(unknown)
                self.lines[name] = self.lines.get(name, 0) + 1

    def report(self) -> Iterator[str]:
        """One line of text for each side with unknown words."""
        for name, kept in self.named.items():
            count = self.count[name]
            which = ", ".join(f"{_shown(word)} (line {line:,})" for line, word in kept)
            more = count - len(kept)
            rest = f", and {more:,} more; {self.lines[name]:,} lines in all" if more else ""
            many = f"{count:,} {name}s are" if count > 1 else f"1 {name} is"
            yield f"{many} not in the vocabulary of the model: {which}{rest}"

    def say(self) -> None:
        """Write the report to standard error."""
        for line in self.report():
            say(line)


def _shown(word: str) -> str:
    cut = word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"
    return f"'{printable(cut)}'"
