"""Alignment units: alignments link, and pictures show, either words or characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.normalize import clean
from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.word_groups import SHOWN_SPACE

__all__ = ["UNITS", "Units", "text_units", "units_of"]

UNITS = ("auto", "word", "character")
"""Values of Translator(unit=...). "auto": characters for a character tokenizer, words for any other."""


@dataclass(frozen=True)
class Units:
    """The units of one side. name: "word" or "character". numbers: maps tokens to the unit index of each."""

    name: str
    numbers: Callable[[Sequence[int]], list[int]]


def units_of(tokenizer: Any, requested: str = "auto") -> Units:
    """Return the units for a tokenizer. requested: "word", "character", or "auto" for the tokenizer's unit.

    Character tokenizers serve tasks such as dates, numbers, spelling or pronunciation, where a whole side is
    often a single word, so an alignment of words would not be informative.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> [units_of(train_tokenizer(kind, ["3 May"])).name for kind in ("character", "word")]
    ['character', 'word']
    """
    if requested not in UNITS:
        raise UnknownName("unit of alignment", requested, UNITS)
    own = getattr(tokenizer, "unit", "word")
    if requested == "word" or own == "word":
        if requested == "character":
            problem = "characters can be aligned only with a character tokenizer"
            raise ArgumentError(message("unit", problem, hint="unit='auto' uses the unit of the tokenizer"))
        return Units("word", tokenizer.words)
    return Units(own, tokenizer.units)


def text_units(text: str, unit: str) -> list[str]:
    """Return the words of a text, or its characters with ␣ for a space.

    >>> text_units("3  May", "word"), text_units("3  May", "character")
    (['3', 'May'], ['3', '␣', 'M', 'a', 'y'])
    """
    cleaned = clean(text)
    return cleaned.split() if unit == "word" else list(cleaned.replace(" ", SHOWN_SPACE))
