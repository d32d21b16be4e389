"""Choices: what can be odd about a pair of sentences, and what is done with a pair that is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["KINDS", "Choices", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One way in which a pair can be odd: its bit in the marks of a line, what it says, what may be done."""

    bit: int
    says: str
    may: tuple[str, ...]


KINDS = {
    "malformed": Kind(1, "not in the form of its file", ("error", "skip")),
    "invalid": Kind(2, "not valid UTF-8", ("error", "replace", "skip")),
    "nul": Kind(4, "holds NUL, a byte that text never has", ("replace", "error", "skip")),
    "empty": Kind(8, "a side is empty", ("skip", "error")),
    "long": Kind(16, "a side has over {longest} characters", ("skip", "error", "keep")),
    "uneven": Kind(32, "a side is over {ratio:g} times as long as the other", ("keep", "error", "skip")),
    "break": Kind(64, "a line break inside a sentence, now a space", ("replace",)),
    "return": Kind(128, "\\r before the end of the line, taken away", ("replace",)),
}
"""In the order in which a pair with several of them is counted as dropped for one; what may be done, the
default first."""

SHORT = 10
"""Sides of fewer characters count as this long when lengths are compared: "No." may become a sentence."""

MOST = 2**31 - 1
"""The largest bound for lengths in characters, and for their ratio."""


@dataclass(frozen=True)
class Choices:
    """What is done with odd pairs: all are counted, and then dropped, repaired, kept, or refused.

    "skip" drops the pair, "replace" repairs it, "keep" keeps it, "error" refuses the data.

    malformed: a line that is no JSON, or has too few columns. invalid: bytes that are not UTF-8; replaced by
    U+FFFD. nul: replaced by a space. empty: a side with nothing to see in it. longest: how many characters a
    side may have, or None; long: what is done with those that have more. ratio: how many times as long as the
    other a side may be, in characters, those under 10 taken as 10, or None; uneven: what is done with those
    that are longer.

    >>> Choices(invalid="replace", longest=200)
    Choices(invalid='replace', longest=200)
    """

    malformed: str = "error"
    invalid: str = "error"
    nul: str = "replace"
    empty: str = "skip"
    longest: int | None = 1000
    long: str = "skip"
    ratio: float | None = 6.0
    uneven: str = "keep"

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            if self.done_with(name) not in kind.may:
                raise UnknownName(f"choice for {name}", self.done_with(name), kind.may)
        for name, type_ in (("longest", int), ("ratio", int | float)):
            given = getattr(self, name)
            if given is not None and (
                isinstance(given, bool) or not isinstance(given, type_) or not 1 <= given <= MOST
            ):
                expected = f"{'a whole number' if type_ is int else 'a number'}, 1 to {MOST:,}, or None"
                raise ArgumentError(message("Choices()", f"{name} is {given!r}", expected=expected))

    def __repr__(self) -> str:
        given = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Choices({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in given)})"

    def done_with(self, kind: str) -> Any:
        """What is done with pairs of this kind."""
        return getattr(self, kind, "replace")

    def bits(self, done: str) -> int:
        """The bits of the kinds with which this is done."""
        return sum(kind.bit for name, kind in KINDS.items() if self.done_with(name) == done)

    def says(self, kind: str) -> str:
        """What this kind is, in words."""
        return KINDS[kind].says.format(longest=self.longest, ratio=self.ratio or 0.0)
