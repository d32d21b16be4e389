"""Read the rows of tables: CSV files, JSON arrays and Parquet files. One reader for each format.

The readers know nothing about pairs or labels: row_formats.py takes the source and the target from a row,
labelled_formats.py the label and the texts.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.read_text import (
    LONGEST_LINE,
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
    "column_places",
    "column_rows",
    "csv_rows",
    "is_csv",
    "json_array_rows",
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
