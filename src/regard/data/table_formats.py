"""Read the rows of tables: TSV, CSV, JSON lines, JSON arrays and Parquet. One reader for each format.

Readers of rows know nothing about pairs or labels. column_pairs(), field_pairs() and list_pairs() take the
source and the target from rows, and yield a block of source lines together with a block of target lines.
labelled_text.py takes the label and the texts, images/caption_formats.py the image and the captions.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from regard.data.column_names import is_column_name
from regard.data.pair_checks import KINDS
from regard.data.read_text import (
    LONGEST_LINE,
    Marks,
    Raw,
    check_likely_encoding,
    invalid_line,
    read_blocks,
    read_chunks,
    read_lines,
)
from regard.data.text_encoding import other_encoding
from regard.errors import DataError, Hint, Setting, message, printable, shown
from regard.files.requirements import install_command

__all__ = [
    "Row",
    "check_format",
    "column_pairs",
    "column_places",
    "column_rows",
    "csv_rows",
    "field_of",
    "field_pairs",
    "fields_of",
    "is_csv",
    "json_array_rows",
    "list_pairs",
    "parquet_rows",
    "record_format",
    "too_few_columns",
    "valid_cell",
]

ENDINGS = {
    "tsv": ((".csv", ".tsv"), "this file has columns, not JSON objects"),
    "jsonl": ((".json", ".jsonl", ".ndjson", ".parquet"), "this file has named fields, not columns"),
}
"""For each kind of table: the endings of file names, and the problem if it is read as the other kind."""


class Row(NamedTuple):
    """A row of a table.

    number: in a CSV file, the line number at which the row begins; otherwise the number of the row, from 1.
    value: the cells of the row as a list (CSV), or a dict; None if the row cannot be read.
    reason: why the row cannot be read.
    reached: number of bytes or rows of the file that have been read.
    """

    number: int
    value: Any
    reason: str = ""
    reached: int = 0


def is_csv(path: Path) -> bool:
    """Return whether the name of a file with columns ends with .csv; other names mean TSV.

    >>> is_csv(Path("a.csv")), is_csv(Path("a.CSV.gz")), is_csv(Path("a.tsv"))
    (True, True, False)
    """
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def check_format(path: Path, kind: str, reader: str) -> None:
    """Raise DataError if the name of a file ends as the names of files of another kind do.

    kind: how the file would be read: "tsv" or "jsonl".
    reader: the function that reads it, for the hint: "read_pairs" or "read_labelled".
    """
    name = path.name.lower().removesuffix(".gz")
    for other, (endings, problem) in ENDINGS.items():
        if other != kind and name.endswith(endings):
            use = Setting(reader, other) if reader == "read_pairs" else Setting(reader, "format", other)
            hint = ("use ", use, " for it")
            raise DataError(message(shown(path), problem, hint=hint))


def column_rows(path: Path, encoding: str | None = None, *, csv: bool | None = None) -> Iterator[Row]:
    """Yield the rows of a TSV or CSV file, the header line included; raise DataError if a row cannot be read.

    csv: whether the file is CSV. Default: if its name ends with .csv.
    """
    if not (is_csv(path) if csv is None else csv):
        for number, line in enumerate(read_lines(path, encoding), 1):
            yield Row(number, line.split("\t"))
        return
    for row in csv_rows(path, encoding):
        if row.reason:
            raise DataError(message(f"{shown(path)}, line {row.number}", row.reason))
        yield row


def column_places(path: Path, header: Sequence[str], columns: Sequence[int | str], hint: Hint) -> list[int]:
    """Return the index of each column; raise DataError if the header line does not have its name.

    header: the cells of the first line.
    columns: numbers from 1, or names in the header line.
    hint: the hint of the error.
    """
    names, places = [name.strip() for name in header], []
    for column in columns:
        if isinstance(column, str) and column not in names:
            known = printable(", ".join(names))[:200]
            problem = f"no column '{printable(column)}'; the columns are {known}"
            raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
        places.append(names.index(column) if isinstance(column, str) else column - 1)
    return places


def too_few_columns(cells: Sequence[Any], places: Sequence[int]) -> str:
    """Return the problem of a row without all columns at `places`; "" if it has them."""
    if len(cells) > max(places):
        return ""
    return f"{len(cells)} column{'s' * (len(cells) > 1)}, expected at least {max(places) + 1}"


def csv_rows(path: Path, encoding: str | None = None) -> Iterator[Row]:
    """Yield the rows of a CSV file, the header line included.

    The separator is the comma, semicolon, tab or vertical bar that occurs most often in the first line,
    outside of quotes; a line such as sep=; before it, for Excel, names the separator. Quoted fields may
    contain line breaks. Invalid bytes are kept as lone surrogates (surrogateescape).
    """
    position = [0]
    lines = _lines(path, encoding, position)
    first = next(lines, None)
    if first is None:
        return
    number = 1
    if first[:4].lower() == "sep=" and len(first.strip()) == 5:
        separator, number = first[4], 2
    else:
        separator, lines = _separator(first), chain([first], lines)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    before = 0
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, reason = None, f"not valid CSV: {error}"
            if "unexpected end" in str(error):
                reason = 'not valid CSV: a quote (") in this line is not closed before the file ends'
        else:
            if cells is None:
                return
            reason = ""
        yield Row(number + before, cells, reason, position[0])
        before = reader.line_num


def _lines(path: Path, encoding: str | None, position: list[int]) -> Iterator[str]:
    """Yield the lines of a file with their line ends; keep the number of bytes read in position[0]."""
    for raw in read_blocks(path, encoding):
        position[0] = raw.reached
        yield from (f"{line}\n" for line in raw.data.decode("utf-8", "surrogateescape").split("\n")[:-1])


def _separator(line: str) -> str:
    outside = "".join(line.split('"')[::2])
    return max(",;\t|", key=outside.count)


def valid_cell(cell: str, name: str, line: int, encoding: str | None) -> str:
    """Return a cell of csv_rows(), or raise DataError if bytes are not valid in the encoding.

    name: the name of the file, for the message.
    line: the number of the line.
    """
    if not cell.isascii() and any("\udc80" <= each <= "\udcff" for each in cell):
        data = cell.encode("utf-8", "surrogateescape")
        problem, hint = invalid_line(Raw("", data, encoding=other_encoding(encoding)), 0)
        raise DataError(message(f"{name}, line {line}", problem, hint=hint))
    return cell


def record_format(path: Path, encoding: str | None = None) -> str:
    """Return the format of a file of records, from its first bytes: "parquet", "array" or "lines".

    "array" is a JSON array of objects; "lines" has one JSON value in each line.
    """
    with open(path, "rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
    start = b""
    for data, _ in read_chunks(path, encoding):
        start = (start + data).lstrip()[:100]
        if len(start) > 1:
            break
    # A line such as ["Hallo.", "Hi."] is a value of a file with one value in each line.
    return "array" if start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"[", b"]", b"") else "lines"


def json_array_rows(path: Path, encoding: str | None = None) -> Iterator[Row]:
    """Yield the elements of a file that is one JSON array. The file is not held in memory."""
    decode, parse = codecs.getincrementaldecoder("utf-8")("surrogateescape"), json.JSONDecoder().raw_decode
    text, begun, number, lines, reached = "", False, 0, 1, 0
    chunks = chain(read_chunks(path, encoding), [(b"", -1)])
    for data, read in chunks:
        last, reached = read < 0, max(read, reached)
        text += decode.decode(data, last)
        if not begun:
            text, begun = text.lstrip()[1:], True
        at = 0
        while True:
            at = _skipped(text, at)
            if text[at : at + 1] in ("", "]"):
                break
            try:
                value, end = parse(text, at)
            except (ValueError, RecursionError) as error:
                if not last and len(text) - at < LONGEST_LINE:
                    break  # the rest of the element is in the next chunk
                place = f"{shown(path)}, line {lines + text.count(chr(10), 0, at)}"
                if other_encoding(encoding) is None:  # in Shift-JIS, bytes of characters are backslashes
                    data = text[at:].encode("utf-8", "surrogateescape")
                    check_likely_encoding(Raw(shown(path), data), 0, place)
                raise DataError(message(place, f"row {number + 1} is not valid JSON: {error}")) from None
            number += 1
            yield Row(number, value, reached=reached)
            at = end
        if text[at : at + 1] == "]":
            return
        lines += text.count("\n", 0, at)
        text = text[at:]
    raise DataError(message(shown(path), "the JSON array is not complete: there is no ] at its end"))


def _skipped(text: str, at: int) -> int:
    """Return the position of the next character, from `at`, that is neither white space nor a comma."""
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def parquet_rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file as dicts. Only the columns in `fields` are read.

    fields: names of columns, or of fields in them, such as "translation.de".
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        problem = "reading Parquet files needs the package pyarrow"
        raise DataError(message(shown(path), problem, hint=install_command("parquet"))) from None
    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            chosen = [name for name in names if any(f == name or f.startswith(f"{name}.") for f in fields)]
            number = 0
            for batch in file.iter_batches(4096, columns=chosen or names, use_threads=False):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(number, value, reached=number)
    except (ArrowException, OSError) as error:
        raise DataError(message(shown(path), f"the Parquet file cannot be read: {error}")) from None


MALFORMED, BREAK = KINDS["malformed"].bit, KINDS["break"].bit
ROWS = 4096

COLUMNS = Setting("read_pairs", "columns")

Two = tuple[Raw, Raw]

MAPPINGS = (dict, Mapping)
"""The types of rows with named fields, for isinstance(). dict is first because its check is much faster."""


def column_pairs(
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


def field_pairs(path: Path, fields: tuple[str, str], encoding: str | None = None) -> Iterator[Two]:
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


def list_pairs(rows: Iterable[Any], fields: tuple[str, str] | None) -> Iterator[Two]:
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
    """Return the indices of the source and the target column.

    Raise DataError if the columns are numbers, but the header has usual column names, such as "source".
    """
    hint = ("check ", COLUMNS, "; if the file has no header, use numbers, starting at 1")
    source, target = column_places(path, header, columns, hint)
    names = [header[place].strip() for place in (source, target) if place < len(header)]
    if isinstance(columns[0], int) and len(names) == 2 and all(map(is_column_name, names)):
        problem = f"the line looks like a header: {printable(' and '.join(names))}"
        hint = ("use ", replace(COLUMNS, value=printable(",".join(names))), "; or remove the line")
        raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
    return source, target
