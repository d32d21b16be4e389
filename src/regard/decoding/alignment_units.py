"""Alignment units: whether alignments and pictures show words, morphemes or characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.tokenizer import clean
from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.word_groups import SHOWN_SPACE, spelled, spelled_or_space

UNITS = ("auto", "word", "morpheme", "character")
"""Values of Translator(unit=...).

"auto" means characters for a character tokenizer, morphemes for a morpheme tokenizer, and words otherwise.
"""


@dataclass(frozen=True)
class Units:
    """The alignment units of the source or of the target: words, morphemes or characters.

    name: "word", "morpheme" or "character".
    numbers: a function that takes the token ids of a text. It returns, for each token, the index of the word,
        morpheme or character that it belongs to.
    pieces: a function that takes the token ids of a text, and returns the text of each token. The texts of
        the tokens of a unit spell the unit.
    """

    name: str
    numbers: Callable[[Sequence[int]], list[int]]
    pieces: Callable[[Sequence[int]], list[str]]


def units_of(tokenizer: Any, requested: str = "auto") -> Units:
    """Return the alignment units for a tokenizer.

    requested: "word", "morpheme", "character", or "auto" (see UNITS). With "morpheme", a tokenizer of another
        kind has words: in a pair of Korean and English, only the Korean words have morphemes.

    Character tokenizers are used for dates, numbers, spelling or pronunciation. There, the source or the
    target is often a single word, so that an alignment of words would show nothing.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> [units_of(train_tokenizer(kind, ["3 May"])).name for kind in ("character", "word")]
    ['character', 'word']
    """
    if requested not in UNITS:
        raise UnknownName("unit of alignment", requested, UNITS)
    own = getattr(tokenizer, "unit", "word")
    if requested == "character" != own:
        problem = "unit is 'character', but this tokenizer is not a character tokenizer"
        raise ArgumentError(message("unit", problem, hint="use unit='auto' or unit='word'"))
    if own == "word" or requested not in ("auto", own):
        return Units("word", tokenizer.words, getattr(tokenizer, "word_pieces", tokenizer.pieces))
    return Units(own, tokenizer.units, tokenizer.pieces)


def check_units(source_tokenizer: Any, target_tokenizer: Any, requested: str) -> None:
    """Raise UnknownName or ArgumentError if two tokenizers do not have the requested alignment units."""
    units = [units_of(tokenizer, requested).name for tokenizer in (source_tokenizer, target_tokenizer)]
    if requested == "morpheme" and requested not in units:
        problem = "unit is 'morpheme', but neither tokenizer is a morpheme tokenizer"
        raise ArgumentError(message("unit", problem, hint="use unit='auto' or unit='word'"))


def count_units(tokenizer: Any, text: str, requested: str) -> int:
    """Return the number of alignment units of a text.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> count_units(train_tokenizer("character", ["3 May"]), "3  May", "auto")
    5
    """
    units = units_of(tokenizer, requested)
    if units.name != "morpheme":
        return len(text_units(text, units.name))
    (tokens,) = tokenizer.encode_lines([text])
    return max(units.numbers(tokens), default=-1) + 1


def text_units(text: str, unit: str) -> list[str]:
    """Return the words of a text, or its characters with ␣ for a space.

    >>> text_units("3  May", "word"), text_units("3  May", "character")
    (['3', 'May'], ['3', '␣', 'M', 'a', 'y'])
    """
    cleaned = clean(text)
    return cleaned.split() if unit == "word" else list(cleaned.replace(" ", SHOWN_SPACE))


def shown_units(text: str, pieces: tuple[str, ...], numbers: tuple[int, ...], unit: str) -> list[str]:
    """Return the words, morphemes or characters to show for a text.

    pieces: the text of each token.
    numbers: for each token, the index of the unit (word, morpheme or character) that it belongs to.

    Usually the tokens have as many units as the text, and the units of the text are returned. There are three
    other cases:

    - The units are morphemes. The tokens spell them, because their text differs: 갔다 has 가, 었 and 다.
    - Only the beginning of the text was tokenized (truncation). All units of the text are returned.
    - The tokenizer splits the text into words in a different way. The words that the tokens spell are
      returned.
    """
    count = max(numbers, default=-1) + 1
    units = [] if unit == "morpheme" else text_units(text, unit)
    if len(units) == count:
        return units
    parts: list[list[str]] = [[] for _ in range(count)]
    for piece, number in zip(pieces, numbers, strict=True):
        if number >= 0:
            parts[number].append(piece)
    from_tokens = [spelled(part) if unit == "word" else spelled_or_space(part) for part in parts]
    # <unk> can stand for any text.
    truncated = len(units) > count and all(
        "<unk>" in start or word.startswith(start.rstrip("\ufffd"))
        for word, start in zip(units, from_tokens, strict=False)
    )
    return units if truncated else from_tokens
