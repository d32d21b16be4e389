"""Phrases: Korean words, and English words that point at the Korean words that say them.

Words are put in order only when a sentence is done, so the links between the languages are right whatever the
order of either: they are made with the words, not found afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

__all__ = [
    "VERSION",
    "VERSIONS",
    "Dice",
    "Gloss",
    "Phrase",
    "Word",
    "article",
    "gloss",
    "possibly",
    "say",
    "spread",
    "surely",
]

VERSIONS = (1, 2)
"""Versions of the grammar. Each always makes the same sentences; a run folder names the version it uses."""

VERSION = VERSIONS[-1]
"""The version that new corpora and new runs use."""

Option = TypeVar("Option")


class Word:
    """A Korean word in a sentence; `place` is its number there, known when the sentence is done."""

    __slots__ = ("place", "text")

    def __init__(self, text: str):
        self.text = text
        self.place = -1


class Gloss(NamedTuple):
    """An English word, the one Korean word that surely says it, and those that possibly do."""

    text: str
    sure: Word | None
    possible: tuple[Word, ...] = ()


class Phrase(NamedTuple):
    """A piece of a sentence in both languages."""

    korean: list[Word]
    english: list[Gloss]


class Dice:
    """Choices that a seed decides, the same on every machine and in every version of Python.

    Only random() is used of Python's generator: it is what the language promises to keep.
    version: of the grammar; an older one draws exactly the numbers that it always drew.

    >>> dice = Dice("seed")
    >>> dice.pick("가나다") in "가나다"
    True
    """

    def __init__(self, seed: str, version: int = VERSION):
        self.random = Random(seed).random
        self.version = version

    def pick(self, options: Sequence[Option], added: Sequence[Option] = ()) -> Option:
        """One of the options, each with the same chance; added: more options, from version 2 on."""
        if added and self.version > 1:
            options = (*options, *added)
        return options[int(self.random() * len(options))]

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return self.random() < share


def spread(weights: Mapping[Option, int]) -> tuple[Option, ...]:
    """Options repeated by their weights, for Dice.pick().

    >>> spread({"often": 3, "rarely": 1})
    ('often', 'often', 'often', 'rarely')
    """
    return tuple(option for option, weight in weights.items() for _ in range(weight))


def surely(text: str, word: Word) -> list[Gloss]:
    """English words that one Korean word surely says."""
    if " " not in text:
        return [Gloss(text, word)]
    return [Gloss(part, word) for part in text.split()]


def possibly(text: str, *words: Word) -> list[Gloss]:
    """English words that Korean has no word for; these come nearest."""
    return [Gloss(part, None, words) for part in text.split()]


def say(korean: str, english: str) -> Phrase:
    """A phrase of the tables, in the notation of lexicon.py.

    >>> phrase = say("세 시에", "(at)/2 three/1 o'clock/2")
    >>> [(gloss.text, gloss.sure and gloss.sure.text) for gloss in phrase.english]
    [('at', None), ('three', '세'), ("o'clock", '시에')]
    """
    words = [Word(text) for text in korean.split()]
    return Phrase(words, gloss(english, words))


def gloss(english: str, words: list[Word]) -> list[Gloss]:
    """The English side of say(), for Korean words that are there already.

    What a word before the last says, the last possibly says too: "my" of 내 친구, with 친구.
    """
    all_words = tuple(words)
    last = all_words[-1:]
    return [
        Gloss(text, words[number], last) if number >= 0 else Gloss(text, None, all_words)
        for text, number in _read(english)
    ]


@cache
def _read(english: str) -> tuple[tuple[str, int], ...]:
    """Each word, and the number from 0 of the Korean word that surely says it, or -1."""
    parts = []
    for part in english.split():
        text, _, number = part.partition("/")
        bracketed = text.startswith("(")
        parts.append((text.strip("()"), -1 if bracketed else int(number or 1) - 1))
    return tuple(parts)


def article(following: str) -> str:
    """The indefinite article before a word; the lexicon has no hours and no universities.

    >>> article("apple"), article("book")
    ('an', 'a')
    """
    return "an" if following[0] in "aeiou" else "a"
