"""File formats of labelled texts. The reader of a format yields rows: line number, label and texts.

To add a format, write its function and add a line to FORMATS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.read_text import read_lines
from regard.data.row_formats import field_of
from regard.errors import ArgumentError, DataError, message, printable, shown

__all__ = ["FORMATS", "Columns", "Format", "Row", "fields_of_json", "text_of_json"]


class Row(NamedTuple):
    """One line of a file with labelled texts.

    number: its line number, from 1.
    label: the label as text.
    texts: one text, or the two texts of a pair.

    A blank line has an empty label and empty texts.
    """

    number: int
    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """The columns or JSON fields of a file that contain the label and the texts.

    label: the column of the label: a number from 1, a name in the header line, or the name of a JSON field.
    texts: the column of the text, or the two columns of a pair of texts: also numbers or names.
    """

    label: int | str
    texts: tuple[int | str, ...]

    @property
    def all(self) -> tuple[int | str, ...]:
        """The columns of the file that are read: the column of the label, then the columns of the texts."""
        return self.label, *self.texts


def tabbed(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the labelled texts of a TSV file.

    columns: numbers or names. If they are names, the first line of the file is a header with these names.
    """
    lines = enumerate(read_lines(path), 1)
    if isinstance(columns.label, str):
        header = next(lines, None)
        if header is None:
            return
        places = _places_in_header(path, header[1], columns)
    else:
        places = [int(column) - 1 for column in columns.all]
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) <= max(places):
            if line.strip():
                problem = f"{len(cells)} column{'s' * (len(cells) > 1)}, expected at least {max(places) + 1}"
                hint = "check the columns of label and text; columns are separated by tabs"
                raise DataError(message(f"{shown(path)}, line {number}", problem, hint=hint))
            cells = [""] * (max(places) + 1)
        label, *texts = (cells[place] for place in places)
        yield Row(number, label.strip(), tuple(texts))


def json_lines(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the labelled texts of a file with one JSON object per line.

    The column name "a.b" means the field "b" of the object in the field "a".
    """
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            yield Row(number, "", ("",) * len(columns.texts))
            continue
        place = f"{shown(path)}, line {number}"
        label, *texts = fields_of_json(line, tuple(map(str, columns.all)), place)
        yield Row(number, _label(label, place), tuple(text_of_json(text, place) for text in texts))


def fields_of_json(line: str, names: Sequence[str], place: str) -> list[Any]:
    """Return the values of fields of a line that is a JSON object.

    names: the names of the fields; "a.b" means the field "b" of the object in the field "a".
    place: the file and the line, for error messages.

    >>> fields_of_json('{"text": "good", "stars": 5}', ["stars", "text"], "x.jsonl, line 1")
    [5, 'good']
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(message(place, f"the line is not valid JSON: {error}")) from None
    try:
        return [field_of(row, name) for name in names]
    except LookupError as error:
        raise DataError(message(place, str(error.args[0]), hint="check the field names")) from None


def label_first(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the labelled texts of a file. Each line is a label, a space, and the text.

    columns: not used, because the format has no columns.
    """
    for number, line in enumerate(read_lines(path), 1):
        label, _, text = line.strip().partition(" ")
        yield Row(number, label, (text,))


@dataclass(frozen=True)
class Format:
    """A file format of labelled texts.

    rows: function that yields the labelled texts of a file, one Row for each line.
    suffixes: file name extensions that imply this format.
    label: the default column of the label; None if the format has no columns.
    text: the default column of the text; None if the format has no columns.
    """

    rows: Callable[[Path, Columns], Iterator[Row]]
    label: int | str | None
    text: int | str | None
    suffixes: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "tsv": Format(tabbed, 1, 2, (".tsv",)),
    "jsonl": Format(json_lines, "label", "text", (".jsonl", ".ndjson")),
    "label-first": Format(label_first, None, None),
}
"""Name -> file format of labelled texts. Files are UTF-8, plain or gzip."""


def _places_in_header(path: Path, header: str, columns: Columns) -> list[int]:
    names = [name.strip() for name in header.split("\t")]
    places = []
    for column in columns.all:
        if column not in names:
            known = printable(", ".join(names))[:200]
            problem = f"no column '{printable(str(column))}'; the columns are {known}"
            hint = "if the file has no header line, use column numbers, starting at 1"
            raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
        places.append(names.index(str(column)))
    return places


def _label(value: Any, place: str) -> str:
    """Return a label from a JSON file as text: 5 becomes "5", true becomes "true", and null becomes "".

    place: the file and the line, for error messages.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int):
        return json.dumps(value)
    if value is None:
        return ""
    problem = f"the label is of type {type(value).__name__}"
    raise DataError(message(place, problem, expected="a string, an integer or a boolean"))


def text_of_json(value: Any, place: str) -> str:
    """Return a text from a JSON file: `value` if it is a string, "" if it is None (null).

    Raise DataError for other types.

    place: the file and the line, for error messages.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        problem = f"the text is of type {type(value).__name__}"
        raise DataError(message(place, problem, expected="a string"))
    return value


def checked_columns(
    call: str, kind: str, label: int | str | None, text: int | str | None, second: int | str | None
) -> Columns:
    """Return the columns to read; raise ArgumentError if they are invalid.

    call: the name of the public function, for error messages.
    kind: the name of the format.
    label, text, second: the columns of the label, of the text and of the second text. If label or text is
        None, the default of the format is used; if second is None, the data are not pairs.
    """
    own = FORMATS[kind]
    texts = (_or_default(text, own.text), *(() if second is None else (second,)))
    columns = Columns(_or_default(label, own.label), texts)
    given = ", ".join(map(repr, columns.all))
    if own.label is None:
        if (label, text, second) != (None, None, None):
            problem = f"label, text or second is set, but the format {kind!r} has no columns"
            raise ArgumentError(
                message(call, problem, hint='do not set these arguments, or use format="tsv" or "jsonl"')
            )
        return Columns("label", ("text",))
    if len(set(columns.all)) != len(columns.all):
        raise ArgumentError(message(call, f"two columns are the same: {given}", expected="different columns"))
    names = all(isinstance(column, str) and column for column in columns.all)
    numbers = all(type(column) is int and column > 0 for column in columns.all)
    if not names and not (numbers and kind == "tsv"):
        expected = "names of fields" if kind == "jsonl" else "numbers from 1, or names in the header line"
        hint = "use only numbers or only names for label, text and second"
        raise ArgumentError(message(call, f"invalid columns: {given}", expected=expected, hint=hint))
    return columns


def _or_default(value: int | str | None, default: int | str | None) -> Any:
    return default if value is None else value
