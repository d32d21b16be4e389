"""Text as tokenizers take it: cleaned, and a bounded sample of it to learn from."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from regard.errors import ArgumentError, DataError, message

__all__ = ["Sample", "clean", "draw_sample", "sides"]

SPACE = "\u2581"
"""What stands for a space inside a piece, as in sentencepiece."""

SAMPLE_LINES = 50_000
SAMPLE_CHARACTERS = 20_000_000
"""What a vocabulary is learned from at most: more lines take longer, and hardly change its pieces."""

_BLANKED = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), ord(SPACE)], " ")


def clean(line: str) -> str:
    """Make any string safe to encode: control characters become spaces, and runs of spaces one.

    Characters are composed (NFC: Korean syllables from their letters, é from e and its accent), so that what
    looks the same is the same, and nothing else is changed: NFKC would also turn ½, … and full-width letters
    into others, which decoding could not bring back. Halves of surrogate pairs, which are what reading bytes
    that are no text leaves behind, become U+FFFD. The mark that stands for a space in pieces is a space.

    >>> clean("  a\\x00b\\t\\u3000c \\udc80 e\\u0301 ")
    'a b c � é'
    """
    if not isinstance(line, str):
        raise ArgumentError(message("clean()", f"a line is of type {type(line).__name__}", expected="a str"))
    # Most lines are clean; seeing that costs a tenth of cleaning them.
    if line.isprintable() and "  " not in line and SPACE not in line:
        if not unicodedata.is_normalized("NFC", line):
            line = unicodedata.normalize("NFC", line)
        return line.strip()
    # Joins the pairs that JSON escapes can leave in two halves, and replaces single halves.
    whole = line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return " ".join(unicodedata.normalize("NFC", whole.translate(_BLANKED)).split())


def sides(pair: Any) -> tuple[str, str]:
    """The source and the target of a pair: its fields of these names, or its first two items."""
    return (pair.source, pair.target) if hasattr(pair, "source") else (pair[0], pair[1])


class Sample(NamedTuple):
    """Clean lines to learn from, none of them empty, and how many times as much text there was in all."""

    lines: list[str]
    scale: float


def draw_sample(lines: Iterable[str], call: str, most: int | None = None) -> Sample:
    """Draw a bounded sample from any number of lines, the same for the same lines.

    Every line has the same chance (Vitter 1985, algorithm R), at most `most` lines (SAMPLE_LINES by default)
    are kept at any time, and of these as many as have SAMPLE_CHARACTERS together.
    """
    if isinstance(lines, str):
        problem, hint = "lines is one string", "give a list of lines: [text]"
        raise ArgumentError(message(call, problem, expected="an iterable of strings", hint=hint))
    most = SAMPLE_LINES if most is None else most
    generator = random.Random(0)
    kept: list[str] = []
    seen = 0
    for line in lines:
        seen += 1
        if len(kept) < most:
            kept.append(line)
        elif (place := int(generator.random() * seen)) < most:
            kept[place] = line
    if seen > len(kept):
        generator.shuffle(kept)  # the first places hold earlier lines, and only the first may be taken
    texts: list[str] = []
    taken = characters = 0
    for line in kept:
        if characters >= SAMPLE_CHARACTERS:
            break
        cleaned = clean(line)
        taken, characters = taken + 1, characters + len(cleaned)
        if cleaned:
            texts.append(cleaned)
    if not texts:
        problem = f"there is nothing to learn from in {seen} lines" if seen else "there are no lines"
        raise DataError(message(call, problem, expected="at least one line with text"))
    return Sample(texts, seen / taken)
