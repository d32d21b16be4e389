"""Split or truncate lines that are longer than the maximum input length of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from regard.decoding.alignment_units import Units

OVERLONG = ("split", "truncate")
"""What to do with a line that is too long: split it into sentences, or truncate it."""

END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]»]*+(?=\s)|[。！？｡]++[\"'”’」』）)]*+")
"""Matches the end of a sentence: punctuation before a space, or full-width punctuation anywhere.

The possessive quantifiers (++, *+) and the lookbehind keep the time linear, even for a million dots in a row.
"""

TITLE = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|[Ee]\.g|[Ii]\.e)\.$")
"""Matches abbreviations, such as Dr., whose full stop does not end a sentence."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that decoding uses. Token ids are without BOS and EOS."""

    @property
    def size(self) -> int:
        """Return the vocabulary size, including special tokens."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each line."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token."""

    def words(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its word in decode(tokens).split(), or -1 if it has none."""


@dataclass(frozen=True)
class Part:
    """The tokens of a line, or of a part of a line that is too long for the model.

    words: for each token, the index of its word (or of its character, if characters are aligned), counted
        from the start of the line. None if the part is a whole line: then, Units.numbers() returns it.
    """

    tokens: tuple[int, ...]
    words: tuple[int, ...] | None = None


def sentences(line: str) -> list[str]:
    """Split a line into sentences, without the spaces between them.

    >>> from regard.decoding.long_lines import sentences
    >>> sentences("밥을 먹었다. 3.5인분이었다! Dr. Kim paid.")
    ['밥을 먹었다.', '3.5인분이었다!', 'Dr. Kim paid.']
    """
    parts, first = [], 0
    for mark in END.finditer(line):
        if not TITLE.search(line, max(first, mark.end() - 6), mark.end()):
            parts.append(line[first : mark.end()].strip())
            first = mark.end()
    parts.append(line[first:].strip())
    return [sentence for sentence in parts if sentence]


def divided(line: str, tokenizer: Tokenizer, room: int, units: Units | None = None) -> tuple[list[Part], str]:
    """Split a line into parts of at most `room` tokens. Return the parts and a note for the user.

    Each sentence is a part. A sentence with more than `room` tokens is split between words, and a word with
    more than `room` tokens is split between tokens. An example of a note is "split into 3 sentences, which
    were translated separately".

    units: the units (words or characters) that Part.words counts. Default: words.
    """
    units = units or Units("word", tokenizer.words, tokenizer.pieces)
    texts = sentences(line)
    parts: list[Part] = []
    unsplit = first = place = 0
    for sentence, tokens in zip(texts, tokenizer.encode_lines(texts), strict=True):
        place = line.index(sentence, place)
        spaced = bool(first) and line[place - 1].isspace()
        place += len(sentence)
        # `offset` is the index in the line of the first unit of this sentence. Characters: the space before
        # the sentence has an index of its own. Words: without a space, as in 길다。그녀는, the last word of
        # the previous sentence and the first word of this one count as one word.
        # A morpheme never continues in the next sentence.
        shift = {"character": spaced, "morpheme": 0}.get(units.name, -(bool(first) and not spaced))
        offset = first + shift
        numbers = [number + offset if number >= 0 else -1 for number in units.numbers(tokens)]
        first = max([first, *(number + 1 for number in numbers)])
        pieces = _split_between_words(tokens, tokenizer.words(tokens), numbers, room)
        unsplit += len(pieces) == 1
        parts += pieces
    if unsplit == len(parts):
        return parts, f"split into {len(parts)} sentences, which were translated separately"
    return parts, f"split into {len(parts)} parts, because a sentence has more than {room} tokens"


def truncated(tokens: Sequence[int], units: Units, room: int) -> tuple[Part, str]:
    """Return the first `room` tokens of a line, and a note for the user: "truncated to 100 of 120 tokens".

    The note is "" if the line has no more tokens.

    units: the units (words or characters) that Part.words counts.
    """
    if len(tokens) <= room:
        return Part(tuple(tokens)), ""
    words = units.numbers(tokens)
    return Part(tuple(tokens[:room]), tuple(words[:room])), f"truncated to {room:,} of {len(tokens):,} tokens"


def _split_between_words(
    tokens: Sequence[int], words: Sequence[int], numbers: Sequence[int], room: int
) -> list[Part]:
    """Split tokens into parts of at most `room` tokens. Words are split only if they are longer than a part.

    words: for each token, the index of its word.
    numbers: for each token, the index of its unit (word or character), which is stored in Part.words.
    """
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
