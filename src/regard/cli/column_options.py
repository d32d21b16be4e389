"""Which columns, or which fields, of a file have the two sides: options that several commands share."""

from __future__ import annotations

from regard.errors import ArgumentError, message

__all__ = ["two_columns", "two_names"]

DIGITS = 9
"""The most digits that the number of a column has."""


def two_names(option: str, given: str) -> tuple[str, str]:
    """Two names with a comma between.

    >>> two_names("--fields", "de, en")
    ('de', 'en')
    """
    parts = [part.strip() for part in given.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise ArgumentError(message(option, f"{given!r}", expected="two different ones, a comma between"))
    return parts[0], parts[1]


def two_columns(given: str) -> tuple[int, int] | tuple[str, str]:
    """Two numbers, or two names.

    >>> two_columns("2,1"), two_columns("ko,en")
    ((2, 1), ('ko', 'en'))
    """
    first, second = two_names("--columns", given)
    numbers = first.isdecimal() and second.isdecimal()
    if numbers and max(len(first), len(second)) > DIGITS:
        raise ArgumentError(
            message("--columns", f"{given[:40]!r}", expected="two numbers from 1, or two names")
        )
    return (int(first), int(second)) if numbers else (first, second)
