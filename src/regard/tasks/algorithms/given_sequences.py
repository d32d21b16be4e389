"""Read sequences that a user wrote as JSON objects: a single object, or one object per line of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data.line_io import Lines, place_name
from regard.errors import DataError, message, printable
from regard.files.untrusted import parse_json

__all__ = ["read_sequence", "sequences_in"]


def read_sequence(text: str, place: str) -> dict[str, Any]:
    """Return the fields of a sequence that is written as a JSON object.

    Raises DataError if the text is not a JSON object.

    text: the JSON text.
    place: where the text is from, for example "line 1", for error messages.

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
    """Yield a pair (place, fields) for each line that is not blank.

    place: the file and the line as text. For values of an option, it is the option; if there are several
        values, with the number of the value.
    fields: the JSON object of the line, for example {"vectors": ["101"]}.
    """
    for number, place in enumerate(lines.places, 1):
        part = Lines([place], option=lines.option, encoding=lines.encoding)
        name = place_name(place, lines.option)
        for text in part:
            if text.strip():
                where = f"{name}, line {part.read}"
                if isinstance(place, bytes):
                    where = name if len(lines.places) == 1 else f"{name}, value {number}"
                yield where, read_sequence(text, where)
