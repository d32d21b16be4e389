"""Read sentence pairs, as blocks of lines, from rows: columns (TSV, CSV), JSON, Parquet or Python values.

Each row has the source and the target of a pair. The functions yield a block of source lines together with a
block of target lines.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy

from regard.data.pair_checks import KINDS
from regard.data.read_text import Marks, Raw, read_blocks
from regard.data.table_formats import (
    Row,
    check_format,
    column_places,
    csv_rows,
    is_csv,
    json_array_rows,
    parquet_rows,
    record_format,
    too_few_columns,
)
from regard.data.text_encoding import other_encoding
from regard.errors import Setting, printable, shown

__all__ = ["column_rows", "field_of", "field_rows", "fields_of", "list_rows"]

MALFORMED, BREAK = KINDS["malformed"].bit, KINDS["break"].bit
ROWS = 4096

COLUMNS = Setting("read_pairs", "columns")

Two = tuple[Raw, Raw]

MAPPINGS = (dict, Mapping)
"""The types of rows with named fields, for isinstance(). dict is first because its check is much faster."""


def column_rows(
    path: Path, columns: tuple[int, int] | tuple[str, str], encoding: str | None = None
) -> Iterator[Two]:
    """Yield the source and target columns of a TSV or CSV file, in blocks of lines.

    columns: the source column and the target column, as numbers from 1 or as names. With names, the first
        line of the file is the header.
    encoding: the encoding of the file; None is UTF-8.
    """
    check_format(path, "tsv", "read_pairs")
    return (_separated_rows if is_csv(path) else _tabbed_rows)(path, columns, encoding)


def _tabbed_rows(
    path: Path, columns: tuple[int, int] | tuple[str, str], encoding: str | None
) -> Iterator[Two]:
    picked: tuple[int, int] | None = None
    for raw in read_blocks(path, encoding):
        if picked is None:
            header = raw.data.split(b"\n", 1)[0].decode("utf-8", "replace").split("\t")
            picked = _picked(path, header, columns)
            if isinstance(columns[0], str):
                marks = None if raw.marks is None else raw.marks[1:]
                raw = replace(raw, data=raw.data.split(b"\n", 1)[1], marks=marks, first=2)
        if raw.data:
            yield _tabbed(raw, picked)


def _separated_rows(
    path: Path, columns: tuple[int, int] | tuple[str, str], encoding: str | None
) -> Iterator[Two]:
    rows = csv_rows(path, encoding)
    header = next(rows, None)
    if header is None:
        return
    picked = _picked(path, header.value or [], columns)
    if isinstance(columns[0], int):
        rows = chain([header], rows)

    def pair(cells: Any) -> tuple[Any, Any]:
        if problem := too_few_columns(cells, picked):
            if not any(cell.strip() for cell in cells):
                return None, None
            raise LookupError(problem)
        return cells[picked[0]], cells[picked[1]]

    yield from _blocks(path, rows, pair, "line", encoding)


def field_rows(path: Path, fields: tuple[str, str], encoding: str | None = None) -> Iterator[Two]:
    """Yield the source and target fields of a file of records, in blocks of lines.

    The file has one JSON object in each line, or is a JSON array of objects, or a Parquet file.

    fields: the source field and the target field; "translation.de" is the field "de" in "translation".
    encoding: the encoding of the file; None is UTF-8.
    """
    check_format(path, "jsonl", "read_pairs")
    kind = record_format(path, encoding)
    if kind == "lines":
        return _json_lines(path, fields, encoding)
    rows = parquet_rows(path, fields) if kind == "parquet" else json_array_rows(path, encoding)
    return _blocks(path, rows, lambda row: fields_of(row, fields), "row", encoding)


def _json_lines(path: Path, fields: tuple[str, str], encoding: str | None) -> Iterator[Two]:
    encoding = other_encoding(encoding)
    for raw in read_blocks(path, encoding):
        sides, lines = _Sides(raw.marks), raw.data.split(b"\n")[:-1]
        for line in lines:
            if not line.strip():
                sides.add(None, None)
                continue
            try:
                # Decode invalid bytes as lone surrogates. encode() in _line() restores these bytes.
                row = json.loads(line.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError) as error:
                sides.add_malformed(f"not valid JSON: {error}")
            else:
                sides.add_fields(row, fields)
        yield sides.raws(raw.name, "line", raw.reached, lines, encoding=encoding)


def _blocks(
    path: Path,
    rows: Iterable[Row],
    pair: Callable[[Any], Sequence[Any]],
    unit: str,
    encoding: str | None,
) -> Iterator[Two]:
    """Yield source and target of the rows of a table, in blocks of rows with consecutive numbers.

    pair: returns source and target of a row; raises LookupError if the row does not have them.
    """
    sides, first, row, encoding = _Sides(None), 1, Row(0, None), other_encoding(encoding)
    for row in rows:
        count = len(sides.lines[0])
        if count == ROWS or (count and row.number != first + count):
            yield sides.raws(shown(path), unit, row.reached, first=first, encoding=encoding)
            sides, count = _Sides(None), 0
        first = first if count else row.number
        if row.reason:
            sides.add_malformed(row.reason)
            continue
        try:
            sides.add(*pair(row.value))
        except LookupError as error:
            remedy = COLUMNS if unit == "line" else _fields_to_use(row.value)
            sides.add_malformed(str(error.args[0]), remedy)
    if sides.lines[0]:
        yield sides.raws(shown(path), unit, row.reached, first=first, encoding=encoding)


def list_rows(rows: Iterable[Any], fields: tuple[str, str] | None) -> Iterator[Two]:
    """Yield the source and target of the rows of a Python collection, in blocks of lines.

    rows: the rows: tuples (source, target), or dicts with a source field and a target field.
    fields: the names of the source field and the target field; None if the rows are tuples.
    """
    iterator, reached = iter(rows), 0
    while batch := list(itertools.islice(iterator, ROWS)):
        sides = _Sides(None)
        for row in batch:
            if fields is None:
                sides.add(*row)
            else:
                sides.add_fields(row, fields)
        reached += len(batch)
        yield sides.raws("data", "row", reached) if fields else sides.raws("lists", "pair", reached)


class _Sides:
    """Collects the source lines and target lines of a block. Each line has bits for its problems (Kind.bit).

    marks: for each row, the bits of the problems of the whole row, such as "\\r" at the end of the row. The
        source line and the target line get these bits. None: no problems.
    lines: the source lines and the target lines.
    own: for each source line and each target line, the bits of all other problems.
    """

    def __init__(self, marks: Marks | None):
        self.marks, self.lines, self.own = marks, ([], []), ([], [])
        self.reasons: dict[int, str] = {}
        self.remedy: Setting | None = None

    lines: tuple[list[bytes], list[bytes]]
    own: tuple[list[int], list[int]]

    def add(self, source: Any, target: Any) -> None:
        for side, value in enumerate((source, target)):
            line, mark = _line(value)
            if mark == MALFORMED:
                self.reasons[len(self.lines[side])] = f"expected a string, got {type(value).__name__}"
            self.lines[side].append(line)
            self.own[side].append(mark)

    def add_fields(self, row: Any, fields: tuple[str, str]) -> None:
        try:
            values = fields_of(row, fields)
        except LookupError as error:
            self.add_malformed(str(error.args[0]), _fields_to_use(row))
        else:
            self.add(*values)

    def add_malformed(self, reason: str, remedy: Setting | None = None) -> None:
        """Add a row that has no source or no target.

        remedy: the setting that the error recommends.
        """
        self.remedy = self.remedy or remedy
        self.reasons[len(self.lines[0])] = reason
        for lines, own in zip(self.lines, self.own, strict=True):
            lines.append(b"")
            own.append(MALFORMED)

    def raws(self, name: str, unit: str, reached: int, whole: Sequence[bytes] = (), **more: Any) -> Two:
        source, target = (
            Raw(
                name,
                b"\n".join(lines) + b"\n",
                self._marks(own),
                unit,
                reached,
                self.reasons,
                self.remedy,
                whole,
                **more,
            )
            for lines, own in zip(self.lines, self.own, strict=True)
        )
        return source, target

    def _marks(self, own: list[int]) -> Marks:
        marks = numpy.array(own, numpy.uint8)
        return marks if self.marks is None else marks | self.marks


def _line(value: Any) -> tuple[bytes, int]:
    """Return a value as one line of bytes, and the bit of its problem (see Kind.bit), or 0.

    Line breaks inside the value are replaced by spaces. None becomes an empty line.
    """
    if value is None:
        return b"", 0
    if not isinstance(value, str):
        return b"", MALFORMED
    mark = 0
    if "\n" in value:
        value, mark = value.replace("\r\n", " ").replace("\n", " "), BREAK
    try:
        return value.encode("utf-8", "surrogateescape"), mark
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass"), mark


def field_of(row: Any, name: str) -> Any:
    """Return the value of a field of a row; raise LookupError if there is no such field.

    row: a dict, or another mapping.
    name: the name of the field. "translation.de" is the field "de" in the field "translation".
    """
    if isinstance(row, MAPPINGS) and name in row:
        return row[name]
    value = row
    for part in name.split("."):
        if isinstance(value, MAPPINGS) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            if isinstance(row, MAPPINGS):
                content = f"the fields are {', '.join(sorted(_names(row)))}" if row else "it is empty"
            else:
                content = f"the row is of type {type(row).__name__}"
            raise LookupError(f"no field '{name}'; {printable(content)[:200]}")
    return value


def _names(row: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of a row; of a field with fields in it, their names, such as "a.b"."""
    for name, value in row.items():
        if isinstance(value, MAPPINGS) and value:
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _fields_to_use(row: Any) -> Setting | None:
    """Return the setting that names the two fields of a row with a text; without value if there are not two.

    Fields in "translation" come first: rows of Hugging Face datasets also have fields such as "id". The
    fields of a row that is a list are its indices.
    """
    if isinstance(row, list) and len(row) == 2:
        return Setting("read_pairs", "fields", "0,1")
    names = list(_names(row)) if isinstance(row, MAPPINGS) else []
    texts = [name for name in names if isinstance(field_of(row, name), str)]
    translations = [name for name in texts if name.startswith("translation.")]
    for chosen in (texts, translations):
        if len(chosen) == 2:
            return Setting("read_pairs", "fields", ",".join(chosen))
    return Setting("read_pairs", "fields")


def fields_of(row: Any, names: Sequence[str]) -> list[Any]:
    """Return the values of fields of a row; raise LookupError if there is no such field. See field_of()."""
    return [field_of(row, name) for name in names]


def _tabbed(raw: Raw, picked: tuple[int, int]) -> Two:
    lines = raw.data.split(b"\n")[:-1]
    rows = [line.split(b"\t", max(picked) + 1) for line in lines]
    least = max(picked) + 1
    # A blank line is not malformed: it is a pair with empty sides, as in the other formats.
    reasons = {
        i: too_few_columns(row, picked) for i, row in enumerate(rows) if len(row) < least and lines[i].strip()
    }
    own = numpy.zeros(len(lines), numpy.uint8) if raw.marks is None else raw.marks.copy()
    own[list(reasons)] |= MALFORMED
    sides = []
    for column in picked:
        cells = [row[column] if len(row) >= least else b"" for row in rows]
        data = b"\n".join(cells) + b"\n"
        sides.append(replace(raw, data=data, marks=own, reasons=reasons, remedy=COLUMNS, whole=lines))
    return sides[0], sides[1]


def _picked(path: Path, header: Sequence[str], columns: tuple[int, int] | tuple[str, str]) -> tuple[int, int]:
    """Return the indices of the source and the target column."""
    hint = ("check ", COLUMNS, "; if the file has no header, use numbers, starting at 1")
    source, target = column_places(path, header, columns, hint)
    return source, target
