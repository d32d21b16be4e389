"""Normalize text for tokenizers, and draw a random sample of the text on which a tokenizer is trained."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from regard.errors import ArgumentError, DataError, message

__all__ = ["Sample", "clean", "draw_sample", "sides"]

SPACE = "\u2581"
"""The character that represents a space in a subword, as in sentencepiece: "▁the"."""

SAMPLE_LINES = 50_000
SAMPLE_CHARACTERS = 20_000_000
"""A vocabulary is trained on at most SAMPLE_LINES lines with at most SAMPLE_CHARACTERS characters.

More text takes longer and hardly changes the vocabulary.
"""

_BLANKED = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), ord(SPACE)], " ")


def clean(line: str) -> str:
    """Normalize a string for encoding.

    - Control characters and the character ▁, which represents a space in subwords, become spaces.
    - Several spaces in a row become one space, and spaces at the beginning and the end are removed.
    - Characters are composed (Unicode NFC): Korean syllables from their letters, é from e and its accent. So
      two strings that look the same are the same. NFKC is not used: it would also change ½, … and full-width
      letters, and decoding could not restore them.
    - Lone surrogates, which come from decoding invalid bytes, become U+FFFD.

    >>> clean("  a\\x00b\\t\\u3000c \\udc80 e\\u0301 ")
    'a b c � é'
    """
    if not isinstance(line, str):
        raise ArgumentError(message("clean()", f"a line is of type {type(line).__name__}", expected="a str"))
    # Most lines are clean already. This check takes a tenth of the time of the code below.
    if line.isprintable() and "  " not in line and SPACE not in line:
        if not unicodedata.is_normalized("NFC", line):
            line = unicodedata.normalize("NFC", line)
        return line.strip()
    # Surrogate pairs, which JSON escapes can produce, become one character. Lone surrogates become U+FFFD.
    whole = line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return " ".join(unicodedata.normalize("NFC", whole.translate(_BLANKED)).split())


def sides(pair: Any) -> tuple[str, str]:
    """Return source and target of a sentence pair: its attributes `source` and `target`, or its two items."""
    return (pair.source, pair.target) if hasattr(pair, "source") else (pair[0], pair[1])


class Sample(NamedTuple):
    """A random sample of lines, on which a tokenizer is trained.

    lines: the lines, cleaned and not empty.
    scale: the number of all lines divided by the number of lines in the sample.
    """

    lines: list[str]
    scale: float


def draw_sample(lines: Iterable[str], call: str, most: int | None = None, *, whole: bool = False) -> Sample:
    """Return a random sample of lines, on which a tokenizer is trained.

    If the lines are the same, the sample is always the same.

    The method is reservoir sampling (Vitter 1985, algorithm R). Every line has the same probability, and only
    the sample is held in memory.

    most: maximum number of lines. Default: SAMPLE_LINES, or all lines if `whole` is True.
    whole: if True, the number of characters is not limited. If False, the limit is SAMPLE_CHARACTERS.
    call: the name of the calling function, for error messages.
    """
    if isinstance(lines, str):
        problem, hint = "lines is a str", "use a list of lines: [text]"
        raise ArgumentError(message(call, problem, expected="an iterable of strings", hint=hint))
    most = (sys.maxsize if whole else SAMPLE_LINES) if most is None else most
    most_characters = sys.maxsize if whole else SAMPLE_CHARACTERS
    generator = random.Random(0)
    reservoir: list[str] = []
    seen = 0
    for line in lines:
        seen += 1
        if len(reservoir) < most:
            reservoir.append(line)
        elif (place := int(generator.random() * seen)) < most:
            reservoir[place] = line
    if seen > len(reservoir):
        # The order in the reservoir depends on the order of the lines. Without this shuffle, the character
        # limit would remove some lines with a higher probability than others.
        generator.shuffle(reservoir)
    texts: list[str] = []
    taken = characters = 0
    for line in reservoir:
        if characters >= most_characters:
            break
        cleaned = clean(line)
        taken, characters = taken + 1, characters + len(cleaned)
        if cleaned:
            texts.append(cleaned)
    if not texts:
        problem = f"all {seen} lines are empty" if seen else "there are no lines"
        raise DataError(message(call, problem, expected="at least one line with text"))
    return Sample(texts, seen / taken)
