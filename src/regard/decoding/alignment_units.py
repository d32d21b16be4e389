"""Units: what alignments link and pictures show, the words of a text or its characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.normalize import clean
from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.word_groups import SHOWN_SPACE

__all__ = ["UNITS", "Units", "text_units", "units_of"]

UNITS = ("auto", "word", "character")
"""What Translator(unit=...) takes. "auto": characters for a character tokenizer, words for all others."""


@dataclass(frozen=True)
class Units:
    """The units of one side. name: "word" or "character". numbers: from tokens to the unit of each."""

    name: str
    numbers: Callable[[Sequence[int]], list[int]]


def units_of(tokenizer: Any, requested: str = "auto") -> Units:
    """The requested units of a tokenizer; "auto" is the tokenizer's own unit.

    A tokenizer whose tokens are characters is for dates, numbers, spelling or pronunciation, where a whole
    side is often one word, and an alignment of words would say nothing.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> [units_of(train_tokenizer(kind, ["3 May"])).name for kind in ("character", "word")]
    ['character', 'word']
    """
    if requested not in UNITS:
        raise UnknownName("unit of alignment", requested, UNITS)
    own = getattr(tokenizer, "unit", "word")
    if requested == "word" or own == "word":
        if requested == "character":
            problem = "the run has no character tokenizer, so characters cannot be aligned"
            raise ArgumentError(message("unit", problem, hint="unit='auto' uses the unit of the tokenizer"))
        return Units("word", tokenizer.words)
    return Units(own, tokenizer.units)


def text_units(text: str, unit: str) -> list[str]:
    """The words of a text, or its characters with a visible sign for a space.

    >>> text_units("3  May", "word"), text_units("3  May", "character")
    (['3', 'May'], ['3', '␣', 'M', 'a', 'y'])
    """
    cleaned = clean(text)
    return cleaned.split() if unit == "word" else list(cleaned.replace(" ", SHOWN_SPACE))
