"""The problems that a sentence pair can have, and the actions for them: drop, repair or keep the pair."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from regard.errors import ArgumentError, UnknownName, message


@dataclass(frozen=True)
class Kind:
    """One kind of problem that a sentence pair can have.

    bit: a power of two. The problems of a line, or of a pair, are stored as one integer. If the line has this
        problem, this bit is set.
    says: description of the problem, for example "a side is empty".
    may: the allowed actions ("error", "skip", "replace", "keep"); the first one is the default.
    """

    bit: int
    says: str
    may: tuple[str, ...]


KINDS = {
    "malformed": Kind(1, "malformed line", ("error", "skip")),
    "invalid": Kind(2, "not valid UTF-8", ("error", "replace", "skip")),
    "nul": Kind(4, "contains a NUL byte", ("replace", "error", "skip")),
    "empty": Kind(8, "a side is empty", ("skip", "error")),
    "long": Kind(16, "a side has over {longest} characters", ("skip", "error", "keep")),
    "uneven": Kind(32, "one side is over {ratio:g} times as long as the other", ("keep", "error", "skip")),
    "break": Kind(64, "line break inside a sentence, replaced by a space", ("replace",)),
    "return": Kind(128, "\\r at the end of a line, removed", ("replace",)),
}
"""All kinds of problems by name.

A pair may have several problems with the action "skip". In the report, it counts as dropped only once: for
the problem that comes first in this dict."""

SHORT = 10
"""When source and target length are compared, a sentence counts as at least this many characters.

Otherwise a short sentence, such as "No.", would be reported if its translation is much longer."""

MOST = 2**31 - 1
"""Largest allowed value of Choices.longest and Choices.ratio."""


@dataclass(frozen=True)
class Choices:
    """What to do with sentence pairs that have a problem: an action for each kind of problem.

    The action "skip" drops the pair, "replace" repairs it, "keep" keeps it, and "error" raises DataError.
    The data report counts the problems, whatever the action.

    malformed: the action for a line that is not valid JSON or has too few columns.
    invalid: the action for bytes that are not valid UTF-8; "replace" writes U+FFFD instead.
    nul: the action for a NUL byte; "replace" writes a space instead.
    empty: the action for a side (source or target) that is empty or only white space.
    longest: maximum length of a side in characters, or None for no limit.
    long: the action for pairs with a side that exceeds `longest`.
    ratio: maximum length of the longer side divided by the length of the shorter side, or None for no limit.
        Lengths are in characters; lengths under 10 count as 10.
    uneven: the action for pairs whose lengths exceed `ratio`.

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
                raise UnknownName(f"action for {name!r}", self.done_with(name), kind.may)
        for name, type_ in (("longest", int), ("ratio", int | float)):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, type_) or not 1 <= value <= MOST
            ):
                expected = f"{'an integer' if type_ is int else 'a number'} from 1 to {MOST:,}, or None"
                raise ArgumentError(message("Choices()", f"{name} is {value!r}", expected=expected))

    def __repr__(self) -> str:
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Choices({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def done_with(self, kind: str) -> Any:
        """Return the action for this kind of problem: "error", "skip", "replace" or "keep"."""
        return getattr(self, kind, "replace")

    def bits(self, done: str) -> int:
        """Return an integer with the bits of all kinds of problems whose action is `done`."""
        return sum(kind.bit for name, kind in KINDS.items() if self.done_with(name) == done)

    def says(self, kind: str) -> str:
        """Return the description of this kind of problem, for example "a side is empty"."""
        return KINDS[kind].says.format(longest=self.longest, ratio=self.ratio or 0.0)
