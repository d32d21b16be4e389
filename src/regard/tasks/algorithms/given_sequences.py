"""Read sequences that a user wrote, as JSON objects: one, or one per line of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data.line_io import Lines, place_name
from regard.errors import DataError, message, printable
from regard.files.untrusted import parse_json

__all__ = ["read_sequence", "sequences_in"]


def read_sequence(text: str, place: str) -> dict[str, Any]:
    """Read one sequence; raise DataError at `place` if the text is not a JSON object.

    >>> read_sequence('{"vectors": ["101"]}', "line 1")
    {'vectors': ['101']}
    """
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        problem = f"this is not JSON: {printable(str(error))[:200]}"
        raise DataError(message(place, problem, expected="a JSON object")) from None
    if not isinstance(value, dict):
        problem = f"this is a JSON {type(value).__name__}, not an object"
        raise DataError(message(place, problem, expected='a JSON object, such as {"vectors": [...]}'))
    return value


def sequences_in(lines: Lines) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place (file and line) and the fields of each sequence. Blank lines are skipped."""
    for place in lines.places:
        part = Lines([place])
        for text in part:
            if text.strip():
                where = f"{place_name(place)}, line {part.read}"
                yield where, read_sequence(text, where)
