"""Text normalization for tokenizers, and a bounded sample of text to train them on."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from regard.errors import ArgumentError, DataError, message

__all__ = ["Sample", "clean", "draw_sample", "sides"]

SPACE = "\u2581"
"""The character that represents a space inside a piece, as in sentencepiece."""

SAMPLE_LINES = 50_000
SAMPLE_CHARACTERS = 20_000_000
"""Maximum size of the text that a vocabulary is trained on: more takes longer and hardly changes it."""

_BLANKED = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), ord(SPACE)], " ")


def clean(line: str) -> str:
    """Normalize any string for encoding: control characters become spaces, and runs of spaces one space.

    Characters are composed (NFC: Korean syllables from their letters, é from e and its accent), so that equal
    looking text is equal. NFKC is not used, because it would also change ½, … and full-width letters, which
    decoding could not restore. Lone surrogates, which come from decoding invalid bytes, become U+FFFD. The
    character ▁, which represents a space in pieces, becomes a space.

    >>> clean("  a\\x00b\\t\\u3000c \\udc80 e\\u0301 ")
    'a b c � é'
    """
    if not isinstance(line, str):
        raise ArgumentError(message("clean()", f"a line is of type {type(line).__name__}", expected="a str"))
    # Most lines are clean; this check takes a tenth of the time of cleaning them.
    if line.isprintable() and "  " not in line and SPACE not in line:
        if not unicodedata.is_normalized("NFC", line):
            line = unicodedata.normalize("NFC", line)
        return line.strip()
    # Join surrogate pairs that JSON escapes can leave apart, and replace lone surrogates.
    whole = line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return " ".join(unicodedata.normalize("NFC", whole.translate(_BLANKED)).split())


def sides(pair: Any) -> tuple[str, str]:
    """Return source and target of a pair: its attributes of these names, or its first two items."""
    return (pair.source, pair.target) if hasattr(pair, "source") else (pair[0], pair[1])


class Sample(NamedTuple):
    """Clean, non-empty lines to train on. scale: size of the whole text relative to the sample."""

    lines: list[str]
    scale: float


def draw_sample(lines: Iterable[str], call: str, most: int | None = None, *, whole: bool = False) -> Sample:
    """Draw a bounded random sample from any number of lines; the same lines always give the same sample.

    Reservoir sampling (Vitter 1985, algorithm R): every line has the same probability, and at most `most`
    lines (default: SAMPLE_LINES) are held in memory. The sample ends at SAMPLE_CHARACTERS characters.
    whole: take all lines by default, of any number of characters.
    call: the name of the calling function, for messages.
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
        generator.shuffle(
            reservoir
        )  # its order depends on the order of the lines, and its end may be cut off
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
