"""Phrases: Korean words, and English words with alignment links to the Korean words that they translate.

A link refers to a Word object, not to a position. So links stay correct when the words are reordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

__all__ = [
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

Option = TypeVar("Option")


class Word:
    """A Korean word of a generated sentence.

    text: the word.
    place: its index in the sentence, or -1 while the sentence is not complete.
    """

    __slots__ = ("place", "text")

    def __init__(self, text: str):
        self.text = text
        self.place = -1


class Gloss(NamedTuple):
    """An English word and the Korean words that it is aligned with.

    text: the English word.
    sure: the Korean word to which it has a sure link, or None.
    possible: the Korean words to which it has possible links.
    """

    text: str
    sure: Word | None
    possible: tuple[Word, ...] = ()


class Phrase(NamedTuple):
    """A part of a sentence, or a whole sentence, in Korean and English.

    korean: the Korean words.
    english: the English words, with their alignment links to the Korean words.
    """

    korean: list[Word]
    english: list[Gloss]


class Dice:
    """Makes the random choices of the grammar, the same on every machine and in every version of Python.

    Only Random.random() is used, because Python guarantees that its sequence does not change.

    seed: random seed.

    >>> dice = Dice("seed")
    >>> dice.pick("가나다") in "가나다"
    True
    """

    def __init__(self, seed: str):
        self.random = Random(seed).random

    def pick(self, options: Sequence[Option]) -> Option:
        """Pick one of the options at random, all with the same probability."""
        return options[int(self.random() * len(options))]

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self.random() < share


def spread(weights: Mapping[Option, int]) -> tuple[Option, ...]:
    """Return a tuple in which each option is repeated by its weight, so that Dice.pick() follows the weights.

    >>> spread({"often": 3, "rarely": 1})
    ('often', 'often', 'often', 'rarely')
    """
    return tuple(option for option, weight in weights.items() for _ in range(weight))


def surely(text: str, word: Word) -> list[Gloss]:
    """Split an English text into words that all have a sure link to the same Korean word."""
    if " " not in text:
        return [Gloss(text, word)]
    return [Gloss(part, word) for part in text.split()]


def possibly(text: str, *words: Word) -> list[Gloss]:
    """Split an English text into words without a sure link. Each has possible links to all Korean `words`."""
    return [Gloss(part, None, words) for part in text.split()]


def say(korean: str, english: str) -> Phrase:
    """Create a phrase from a Korean text and an English text with alignment links, as in lexicon.toml.

    "three/1" has a sure link to the first Korean word. "(at)/2" is in parentheses, so it has only possible
    links, and its number is ignored.

    >>> phrase = say("세 시에", "(at)/2 three/1 o'clock/2")
    >>> [(gloss.text, gloss.sure and gloss.sure.text) for gloss in phrase.english]
    [('at', None), ('three', '세'), ("o'clock", '시에')]
    """
    words = [Word(text) for text in korean.split()]
    return Phrase(words, gloss(english, words))


def gloss(english: str, words: list[Word]) -> list[Gloss]:
    """Create the English words of a phrase.

    english: the English text with alignment links in the notation of lexicon.toml: "this/1 morning/2".
    words: the Korean words.

    A word with a sure link also has a possible link to the last Korean word: in 내 친구 (my friend), for
    example, "my" has a possible link to 친구. A word in parentheses has possible links to all Korean words.
    """
    all_words = tuple(words)
    last = all_words[-1:]
    return [
        Gloss(text, words[number], last) if number >= 0 else Gloss(text, None, all_words)
        for text, number in _read(english)
    ]


@cache
def _read(english: str) -> tuple[tuple[str, int], ...]:
    """Return (word, index) for each English word of a text with alignment links, such as "this/1 morning/2".

    index: the index, from 0, of the Korean word to which the English word has a sure link; -1 for a word in
        parentheses, which has only possible links.
    """
    parts = []
    for part in english.split():
        text, _, number = part.partition("/")
        bracketed = text.startswith("(")
        parts.append((text.strip("()"), -1 if bracketed else int(number or 1) - 1))
    return tuple(parts)


def article(following: str) -> str:
    """Return "a" or "an", depending on the first letter of the next word.

    Words that need another article than their first letter suggests, such as "hour", are not in the
    vocabulary.

    >>> article("apple"), article("book")
    ('an', 'a')
    """
    return "an" if following[0] in "aeiou" else "a"
