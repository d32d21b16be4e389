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
from regard.data.row_formats import fields_of
from regard.data.table_formats import (
    check_format,
    column_places,
    column_rows,
    is_csv,
    json_array_rows,
    parquet_rows,
    record_format,
    too_few_columns,
    valid_cell,
)
from regard.errors import ArgumentError, DataError, message, shown

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


def tabbed(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a TSV file, or of a CSV file if its name ends with .csv.

    columns: numbers or names. If they are names, the first line of the file is a header with these names.
    """
    check_format(path, "tsv", "read_labelled")
    rows = column_rows(path, encoding)
    if isinstance(columns.label, str):
        header = next(rows, None)
        if header is None:
            return
        hint = "if the file has no header line, use column numbers, starting at 1"
        places = column_places(path, header.value, columns.all, hint)
    else:
        places = column_places(path, (), columns.all, "")
    for row in rows:
        cells = row.value
        if problem := too_few_columns(cells, places):
            if any(cell.strip() for cell in cells):
                between = "commas or semicolons" if is_csv(path) else "tabs"
                hint = f"check the columns of label and text; columns are separated by {between}"
                raise DataError(message(f"{shown(path)}, line {row.number}", problem, hint=hint))
            cells = [""] * (max(places) + 1)
        label, *texts = (valid_cell(cells[at], shown(path), row.number, encoding) for at in places)
        yield Row(row.number, label.strip(), tuple(texts))


def records(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a file of records: JSON lines, a JSON array, or a Parquet file.

    The column name "a.b" means the field "b" of the object in the field "a".
    """
    check_format(path, "jsonl", "read_labelled")
    names, kind = tuple(map(str, columns.all)), record_format(path, encoding)
    if kind != "lines":
        rows = parquet_rows(path, names) if kind == "parquet" else json_array_rows(path, encoding)
        for row in rows:
            place = f"{shown(path)}, row {row.number}"
            yield _labelled(row.number, _fields(row.value, names, place), place)
        return
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line.strip():
            yield Row(number, "", ("",) * len(columns.texts))
            continue
        place = f"{shown(path)}, line {number}"
        yield _labelled(number, fields_of_json(line, names, place), place)


def _labelled(number: int, values: Sequence[Any], place: str) -> Row:
    label, *texts = values
    return Row(number, _label(label, place), tuple(text_of_json(text, place) for text in texts))


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
    return _fields(row, names, place)


def _fields(row: Any, names: Sequence[str], place: str) -> list[Any]:
    try:
        return fields_of(row, names)
    except LookupError as error:
        raise DataError(message(place, str(error.args[0]), hint="check the field names")) from None


def label_first(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a file. Each line is a label, a space, and the text.

    columns: not used, because the format has no columns.
    """
    for number, line in enumerate(read_lines(path, encoding), 1):
        label, _, text = line.strip().partition(" ")
        yield Row(number, label, (text,))


@dataclass(frozen=True)
class Format:
    """A file format of labelled texts.

    rows: function that yields the labelled texts of a file, one Row for each text. Its arguments are the
        path, the columns and the encoding of the file (None is UTF-8).
    suffixes: file name extensions that imply this format.
    label: the default column of the label; None if the format has no columns.
    text: the default column of the text; None if the format has no columns.
    """

    rows: Callable[[Path, Columns, str | None], Iterator[Row]]
    label: int | str | None
    text: int | str | None
    suffixes: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "tsv": Format(tabbed, 1, 2, (".tsv", ".csv")),
    "jsonl": Format(records, "label", "text", (".jsonl", ".ndjson", ".json", ".parquet")),
    "label-first": Format(label_first, None, None),
}
"""Name -> file format of labelled texts. Files are plain or gzip."""


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
