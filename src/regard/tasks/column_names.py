"""Parse --columns and --fields: the columns (TSV) or fields (JSON) of the source and the target."""

from __future__ import annotations

from regard.errors import ArgumentError, message

__all__ = ["COLUMNS", "FIELDS", "two_columns", "two_names"]

COLUMNS = (
    "The source and the target column of --tsv: two numbers (the first column is 1) or two names from the "
    "header line."
)
FIELDS = "The source and the target field of --jsonl: two names. a.b is the field b inside the field a."
"""Help texts of the options."""

DIGITS = 9
"""Maximum number of digits of a column number. A longer number is an error."""


def two_names(option: str, text: str) -> tuple[str, str]:
    """Parse two different names, separated by a comma.

    >>> two_names("--fields", "de, en")
    ('de', 'en')
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise ArgumentError(
            message(option, f"{text!r}", expected="two different names or numbers, separated by a comma")
        )
    return parts[0], parts[1]


def two_columns(text: str) -> tuple[int, int] | tuple[str, str]:
    """Parse two column numbers, or two column names.

    >>> two_columns("2,1"), two_columns("ko,en")
    ((2, 1), ('ko', 'en'))
    """
    first, second = two_names("--columns", text)
    numbers = first.isdecimal() and second.isdecimal()
    if numbers and max(len(first), len(second)) > DIGITS:
        raise ArgumentError(
            message("--columns", f"{text[:40]!r}", expected="two numbers (the first is 1) or two names")
        )
    return (int(first), int(second)) if numbers else (first, second)
