"""Splitting: what to do with a line that is longer than a model reads, and saying what was done."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from regard.decoding.alignment_units import Units

__all__ = ["OVERLONG", "Part", "Tokenizer", "divided", "sentences", "truncated"]

OVERLONG = ("split", "truncate")
"""What may be done with a line that is too long: translate it sentence by sentence, or only its beginning."""

END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]»]*+(?=\s)|[。！？｡]++[\"'”’」』）)]*+")
"""The end of a sentence: marks before a space, or wide marks, which need none after them.

A run of marks is tried once, from its beginning: a line of a million dots takes no longer than others.
"""

TITLE = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|[Ee]\.g|[Ii]\.e)\.$")
"""What ends in a full stop and does not end a sentence."""


class Tokenizer(Protocol):
    """What decoding asks of a tokenizer: text to token numbers without BOS and EOS, and back."""

    @property
    def size(self) -> int:
        """How many tokens there are."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The tokens of each line."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""

    def words(self, tokens: Sequence[int]) -> list[int]:
        """The number of the word that each token belongs to, -1 for none."""


@dataclass(frozen=True)
class Part:
    """A line of source tokens, or a part of one; words (or characters) are numbered through the line."""

    tokens: tuple[int, ...]
    words: tuple[int, ...]


def sentences(line: str) -> list[str]:
    """The sentences of a line, without the spaces between them.

    >>> from regard.decoding.long_lines import sentences
    >>> sentences("밥을 먹었다. 3.5인분이었다! Dr. Kim paid.")
    ['밥을 먹었다.', '3.5인분이었다!', 'Dr. Kim paid.']
    """
    found, first = [], 0
    for mark in END.finditer(line):
        if not TITLE.search(line, max(first, mark.end() - 6), mark.end()):
            found.append(line[first : mark.end()].strip())
            first = mark.end()
    found.append(line[first:].strip())
    return [sentence for sentence in found if sentence]


def divided(line: str, tokenizer: Tokenizer, room: int, units: Units | None = None) -> tuple[list[Part], str]:
    """A line in its sentences, each of at most `room` tokens, and what is to be said of it.

    A sentence that is itself too long is cut between words; a word that is, between tokens. units: what is
    numbered through the line; words unless given.
    """
    units = units or Units("word", tokenizer.words)
    each = sentences(line)
    parts: list[Part] = []
    whole = first = place = 0
    for sentence, tokens in zip(each, tokenizer.encode_lines(each), strict=True):
        place = line.index(sentence, place)
        spaced = bool(first) and line[place - 1].isspace()
        place += len(sentence)
        # A space between sentences is a character; without one, 길다。그녀는 is one word.
        begun = first + spaced if units.name == "character" else first - (bool(first) and not spaced)
        numbers = [number + begun if number >= 0 else -1 for number in units.numbers(tokens)]
        first = max([first, *(number + 1 for number in numbers)])
        cut = _cut(tokens, tokenizer.words(tokens), numbers, room)
        whole += len(cut) == 1
        parts += cut
    if whole == len(parts):
        return parts, f"split into {len(parts)} at sentence ends"
    return parts, f"split into {len(parts)}, also inside sentences of more than {room} tokens"


def truncated(tokens: Sequence[int], words: Sequence[int], room: int) -> tuple[Part, str]:
    """The beginning of a line, and what is to be said of it."""
    return Part(tuple(tokens[:room]), tuple(words[:room])), f"cut at {room} of {len(tokens)} tokens"


def _cut(tokens: Sequence[int], words: Sequence[int], numbers: Sequence[int], room: int) -> list[Part]:
    """Tokens in parts of at most `room`, cut between words where a word fits, with their numbers."""
    parts, first = [], 0
    while first < len(tokens):
        last = min(first + room, len(tokens))
        end = last
        while first < end < len(tokens) and words[end] >= 0 and words[end] == words[end - 1]:
            end -= 1
        last = end if end > first else last
        parts.append(Part(tuple(tokens[first:last]), tuple(numbers[first:last])))
        first = last
    return parts
