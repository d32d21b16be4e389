"""Read the rows of tables: TSV, CSV, JSON lines, JSON arrays and Parquet. One reader for each format.

Readers of rows know nothing about pairs or labels. column_pairs(), field_pairs() and list_pairs() take the
source and the target from rows, and yield a block of source lines together with a block of target lines.
labelled_text.py takes the label and the texts, images/caption_files.py the image and the captions.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import itertools
import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy

from regard.data.column_names import is_column_name
from regard.data.read_text import (
    KINDS,
    LONGEST_LINE,
    Raw,
    check_likely_encoding,
    invalid_line,
    read_blocks,
    read_chunks,
    read_lines,
)
from regard.data.text_encoding import other_encoding
from regard.errors import DataError, Hint, RegardWarning, Setting, message, printable, shell_word, shown
from regard.files.requirements import install_command
from regard.files.untrusted import parse_json

ENDINGS = {
    "tsv": ((".csv", ".tsv"), "this file has columns, not JSON objects"),
    "jsonl": ((".json", ".jsonl", ".ndjson", ".parquet"), "this file has named fields, not columns"),
}
"""For each kind of table: the endings of file names, and the problem if it is read as the other kind."""


class Row(NamedTuple):
    """A row of a table.

    number: in a CSV file, the line number at which the row begins; otherwise the number of the row, from 1.
    value: the cells of the row as a list (CSV), or a dict; None if the row is blank or cannot be read.
    reason: why the row cannot be read.
    reached: number of bytes or rows of the file that have been read.
    line: the row as it is in the file, if it is one line.
    mark: the bits of the problems of the line (see Kind.bit).
    """

    number: int
    value: Any
    reason: str = ""
    reached: int = 0
    line: str = ""
    mark: int = 0


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


RECORD = re.compile(r'\s*\{\s*"[^"]*"\s*:')
"""The beginning of a JSON object that has fields."""


def check_plain_text(files: Iterable[str | Path], encoding: str | None = None) -> None:
    """Raise DataError if a file that is read as one sentence per line is a table of sentence pairs.

    A table is a file of JSON objects, a Parquet file, or a .csv or .tsv file with several columns.

    files: the files. Standard input (-), and files that cannot be read, are not checked.
    encoding: the encoding of the files; None is UTF-8.
    """
    for file in files:
        text = text_start(file, encoding).removeprefix("\ufeff").lstrip()
        lines = [line for line in text.split("\n") if line.strip()][:3]
        name = str(file).lower().removesuffix(".gz")
        separators = {".csv": ",;\t|", ".tsv": "\t"}.get(name[-4:], "")
        columns = any(
            all(len(next(csv.reader([line], delimiter=each))) > 1 for line in lines) for each in separators
        )
        records = all(map(RECORD.match, lines)) or RECORD.match(text.removeprefix("["))
        if lines and (records or columns or text.startswith("PAR1")):
            kind, content = ("tsv", "columns") if columns and not records else ("jsonl", "named fields")
            hint = ("use ", Setting("read_pairs", kind), " for it")
            problem = f"this file has {content}, but it is read as one sentence per line"
            raise DataError(
                message(shown(file), problem, expected="a text file with one sentence per line", hint=hint)
            )


def text_start(file: str | Path, encoding: str | None) -> str:
    """Return the beginning of a file as text. Invalid bytes are replaced."""
    return file_start(file).decode(other_encoding(encoding) or "utf-8", "replace")


def file_start(file: str | Path) -> bytes:
    """Return the first bytes of a file, plain or gzip; b"" if it is not a regular file that can be read."""
    path = Path(file)
    try:
        if not path.is_file():
            return b""
        with open(path, "rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as opened:
            return opened.read(1 << 16)
    except (EOFError, OSError, ValueError, zlib.error):  # the reader of the file raises the error
        return b""


def column_rows(path: Path, encoding: str | None = None, *, csv: bool | None = None) -> Iterator[Row]:
    """Yield the rows of a TSV or CSV file, the header line included; raise DataError if a row cannot be read.

    csv: whether the file is CSV. Default: if its name ends with .csv.
    """
    if not (is_csv(path) if csv is None else csv):
        lines = read_lines(path, encoding)
        start = list(itertools.islice(lines, ROWS))
        _check_quotes(path, "\n".join(start))
        for number, line in enumerate(chain(start, lines), 1):
            yield Row(number, line.split("\t"))
        return
    for row in csv_rows(path, encoding):
        if row.reason:
            raise DataError(message(f"{shown(path)}, line {row.number}", row.reason))
        yield row


QUOTED = re.compile(r'(?<![^\t\n])"((?:[^"\t]|"")*)"(?![^\t\n])')
"""A cell in quotes, as in CSV; quotes in it are doubled."""


def _check_quotes(path: Path, text: str) -> None:
    """Warn if the cells of a TSV file are quoted as in CSV, as in "Unicode text" from Excel.

    Raise DataError if line breaks in such cells have broken rows.

    text: the first lines of the file. Its last cell may be incomplete.
    """
    if '"' not in text or QUOTED.sub("", text).count('"') > 1:
        return
    quoted = QUOTED.findall(text)
    uneven = len({row.count("\t") for row in text.split("\n")}) > 1
    broken = next((cell for cell in quoted if uneven and "\n" in cell), "")
    shows = broken or next((cell for cell in quoted if '""' in cell), "")
    if not shows:
        return
    place = f"{shown(path)}, line {text.count(chr(10), 0, text.index(shows)) + 1}"
    parts = "line breaks and quotes" if broken else "quotes"
    problem = f"the cells are quoted as in CSV, so {parts} are not part of the text"
    hint = f"read the file as CSV, which may have tabs; rename it: {rename_command(path)}"
    if broken:
        raise DataError(message(place, problem, hint=hint))
    warnings.warn(message(place, problem, hint=hint), RegardWarning, stacklevel=2)


def rename_command(path: Path) -> str:
    """Return the shell command that renames a file so that it is read as CSV.

    >>> rename_command(Path("a.txt.gz"))
    'mv a.txt.gz a.csv.gz'
    """
    bare = path.name.removesuffix(".gz")
    renamed = path.with_name(f"{Path(bare).stem}.csv{path.name[len(bare) :]}")
    return f"mv {shell_word(path)} {shell_word(renamed)}"


def column_places(path: Path, header: Sequence[str], columns: Sequence[int | str], hint: Hint) -> list[int]:
    """Return the index of each column; raise DataError if the header line does not have its name.

    header: the cells of the first line.
    columns: numbers from 1, or names in the header line.
    hint: the hint of the error.
    """
    names, places = [name.strip() for name in header], []
    for column in columns:
        if isinstance(column, str) and column not in names:
            check_header_encoding(path, header)
            known = printable(", ".join(names))[:200]
            problem = f"no column '{printable(column)}'; the columns are {known}"
            raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
        places.append(names.index(column) if isinstance(column, str) else column - 1)
    return places


def check_header_encoding(path: Path, header: Sequence[str]) -> None:
    """Raise DataError, with the likely encoding, if the header line of a table is not valid UTF-8."""
    if any("\udc80" <= each <= "\udcff" for cell in header for each in cell):
        start = Raw(shown(path), file_start(path).decode("utf-8", "surrogateescape"))
        check_likely_encoding(start, 0, f"{shown(path)}, line 1")


def similar_columns(header: Sequence[str], columns: Sequence[int | str]) -> str:
    """Return the columns of a header line that are probably meant, as for --columns; "" if unknown.

    columns: the names that were given.

    >>> similar_columns(["id", "ko", "text"], ["ko", "txt"]), similar_columns(["ko", "en"], ["a", "b"])
    ('ko,text', 'ko,en')
    """
    names = [name.strip() for name in header]
    similar = (difflib.get_close_matches(str(each), names, n=1, cutoff=0.5) for each in columns)
    meant = [close[0] if close else "" for close in similar]
    others = [name for name in names if name not in meant]
    if meant.count("") == len(others) and all(len(name.split()) == 1 for name in others):  # no sentences
        rest = iter(others)
        meant = [name or next(rest) for name in meant]
    usable = all(name and "," not in name for name in meant) and len({*meant}) == len(meant)
    return ",".join(meant) if usable else ""


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
            cells = None
            reason = f'not valid CSV: {error}; in a cell in quotes, each quote is written twice: "a ""b"" c"'
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
        yield from (f"{line}\n" for line in raw.text.split("\n"))


def _separator(line: str) -> str:
    outside = "".join(line.split('"')[::2])
    return max(",;\t|", key=outside.count)


T = TypeVar("T")

JSON_TYPES: dict[type, str] = {dict: "a JSON object", list: "a list", str: "a string"}


def json_object(text: str | bytes, place: str, hint: Hint = "") -> dict[str, Any]:
    """Parse a JSON object; raise DataError if the text is something else.

    place: where the text is from, for the error message.
    """
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise DataError(message(place, f"not valid JSON: {printable(str(error))[:200]}", hint=hint)) from None
    return json_typed(value, dict, place)


def json_typed(value: Any, kind: type[T], place: str) -> T:
    """Return a value of a JSON file; raise DataError if it is not of the type `kind`."""
    if not isinstance(value, kind):
        problem = f"the value is of type {type(value).__name__}"
        raise DataError(message(place, problem, expected=JSON_TYPES[kind]))
    return value


def json_field(row: Any, name: str, kind: type[T], place: str) -> T:
    """Return a field of a JSON object; raise DataError if it is missing or not of the type `kind`."""
    fields = json_typed(row, dict, place)
    if name not in fields:
        there = printable(", ".join(sorted(map(str, fields))))[:200]
        raise DataError(message(place, f"the object has no field '{name}'; its fields are {there}"))
    return json_typed(fields[name], kind, f"{place}, field '{name}'")


def valid_cell(cell: str, name: str, line: int, encoding: str | None) -> str:
    """Return a cell of csv_rows(), or raise DataError if bytes are not valid in the encoding.

    name: the name of the file, for the message.
    line: the number of the line.
    """
    if not cell.isascii() and any("\udc80" <= each <= "\udcff" for each in cell):
        problem, hint = invalid_line(Raw("", cell, encoding=other_encoding(encoding)), 0)
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
    if start[:1] == b"{":
        _check_objects(path, encoding)
    # A line such as ["Hallo.", "Hi."] is a value of a file with one value in each line.
    return "array" if start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"[", b"]", b"") else "lines"


def _check_objects(path: Path, encoding: str | None) -> None:
    """Raise DataError if a file that begins with { is one JSON object with lists, not one object per line."""
    text = next(read_chunks(path, encoding))[0].decode("utf-8", "replace")
    first, _, rest = text.partition("\n")
    if rest.strip() and first.rstrip().endswith("}"):
        return
    start = r"" if first.strip() == "{" else r"^\s*\{\s*"  # if it is indented, the list may be a later field
    if found := re.search(start + r'"([^"\n]*)"\s*:\s*\[\s*["{]', text):
        problem = f"the file is one JSON object, and its field '{printable(found[1])}' is a list"
        expected = "one JSON object in each line, or a JSON array of objects"
        hint = "save the list of rows alone; pandas: frame.to_json(path, orient='records', lines=True)"
        raise DataError(message(shown(path), problem, expected=expected, hint=hint))


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
                    check_likely_encoding(Raw(shown(path), text[at:]), 0, place)
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

Columns = tuple[int, int] | tuple[str, str]

MAPPINGS = (dict, Mapping)
"""The types of rows with named fields, for isinstance(). dict is first because its check is much faster."""


def column_pairs(path: Path, columns: Columns, encoding: str | None = None) -> Iterator[Two]:
    """Yield the source and target columns of a TSV or CSV file, in blocks of lines.

    columns: the source column and the target column, as numbers from 1 or as names. With names, the first
        line of the file is the header.
    encoding: the encoding of the file; None is UTF-8.
    """
    check_format(path, "tsv", "read_pairs")
    return (_separated_pairs if is_csv(path) else _tabbed_pairs)(path, columns, encoding)


def _tabbed_pairs(path: Path, columns: Columns, encoding: str | None) -> Iterator[Two]:
    places: list[int] = []
    for raw in read_blocks(path, encoding):
        lines = raw.text.split("\n")
        marks = numpy.zeros(len(lines), numpy.uint8) if raw.marks is None else raw.marks
        if not places:
            places = _places(path, lines[0].split("\t"), columns)
            _check_quotes(path, raw.text)
            if isinstance(columns[0], str):
                lines, marks, raw = lines[1:], marks[1:], replace(raw, first=2)
        if not lines:
            continue
        least = max(places) + 1
        rows = [line.split("\t", least) for line in lines]
        # A blank line is not malformed: it is a pair with empty sides, as in the other formats.
        reasons = {
            i: too_few_columns(row, places)
            for i, row in enumerate(rows)
            if len(row) < least and lines[i].strip()
        }
        marks[list(reasons)] |= MALFORMED
        source, target = (
            replace(
                raw,
                text="\n".join([row[place] if len(row) >= least else "" for row in rows]),
                marks=marks,
                reasons=reasons,
                remedy=COLUMNS,
                whole=lines,
                data=b"",
            )
            for place in places
        )
        yield source, target


def _separated_pairs(path: Path, columns: Columns, encoding: str | None) -> Iterator[Two]:
    rows = csv_rows(path, encoding)
    header = next(rows, None)
    if header is None:
        return
    places = _places(path, header.value or [], columns)
    if isinstance(columns[0], int):
        rows = chain([header], rows)

    def pair(cells: Any) -> tuple[Any, Any]:
        if problem := too_few_columns(cells, places):
            if not any(cell.strip() for cell in cells):
                return None, None
            raise LookupError(problem)
        return cells[places[0]], cells[places[1]]

    yield from _blocks(shown(path), rows, pair, "line", encoding, lambda cells: COLUMNS)


def _places(path: Path, header: Sequence[str], columns: Columns) -> list[int]:
    """Return the indices of the source and the target column.

    Raise DataError if the columns are numbers, but the header has usual column names, such as "source".
    """
    hint: Hint = ("check ", COLUMNS, "; if the file has no header, use numbers, starting at 1")
    if similar := similar_columns(header, columns):
        hint = (
            "use ",
            replace(COLUMNS, value=printable(similar)),
            "; if the file has no header, use numbers",
        )
    places = column_places(path, header, columns, hint)
    names = [header[place].strip() for place in places if place < len(header)]
    if isinstance(columns[0], int) and len(names) == 2 and all(map(is_column_name, names)):
        problem = f"the line looks like a header: {printable(' and '.join(names))}"
        hint = ("use ", replace(COLUMNS, value=printable(",".join(names))), "; or remove the line")
        raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
    return places


def field_pairs(path: Path, fields: tuple[str, str], encoding: str | None = None) -> Iterator[Two]:
    """Yield the source and target fields of a file of records, in blocks of lines.

    The file has one JSON object in each line, or is a JSON array of objects, or a Parquet file.

    fields: the source field and the target field; "translation.de" is the field "de" in "translation".
    encoding: the encoding of the file; None is UTF-8.
    """
    rows, unit = record_rows(path, fields, encoding, "read_pairs")
    return _blocks(shown(path), rows, lambda row: fields_of(row, fields), unit, encoding)


def record_rows(
    path: Path, fields: Sequence[str], encoding: str | None, reader: str
) -> tuple[Iterator[Row], str]:
    """Return the rows of JSON lines, a JSON array or a Parquet file; and "line" or "row", their unit.

    reader: the function that reads the file, for error messages: "read_pairs" or "read_labelled".
    """
    check_format(path, "jsonl", reader)
    kind = record_format(path, encoding)
    if kind == "lines":
        return json_line_rows(path, encoding), "line"
    return parquet_rows(path, fields) if kind == "parquet" else json_array_rows(path, encoding), "row"


def json_line_rows(path: Path, encoding: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file with one JSON value in each line. Invalid bytes are lone surrogates."""
    for raw in read_blocks(path, encoding):
        lines = raw.text.split("\n")
        marks = itertools.repeat(0) if raw.marks is None else raw.marks.tolist()
        for number, (line, mark) in enumerate(zip(lines, marks, strict=False), raw.first):
            value, reason = None, ""
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    reason = f"not valid JSON: {error}"
            yield Row(number, value, reason, raw.reached, line, mark)


def list_pairs(rows: Iterable[Any], fields: tuple[str, str] | None) -> Iterator[Two]:
    """Yield the source and target of the rows of a Python collection, in blocks of lines.

    rows: the rows: tuples (source, target), or dicts with a source field and a target field.
    fields: the names of the source field and the target field; None if the rows are tuples.
    """
    numbered = (Row(number, row, reached=number) for number, row in enumerate(rows, 1))
    if fields is None:
        return _blocks("lists", numbered, lambda row: row, "pair", None)
    return _blocks("data", numbered, lambda row: fields_of(row, fields), "row", None)


def _blocks(
    name: str,
    rows: Iterable[Row],
    pair: Callable[[Any], Sequence[Any]],
    unit: str,
    encoding: str | None,
    remedy: Callable[[Any], Setting | None] | None = None,
) -> Iterator[Two]:
    """Yield source and target of the rows of a table, in blocks of rows with consecutive numbers.

    pair: returns source and target of a row; raises LookupError if the row does not have them.
    remedy: returns the setting that the error of a malformed row recommends. Default: the fields to use.
    """
    encoding, remedy = other_encoding(encoding), remedy or _fields_to_use
    numbered = iter(rows)
    row = next(numbered, None)
    while row is not None:
        first, reached, whole = row.number, row.reached, list[str]()
        sides: tuple[list[str], list[str]] = ([], [])
        marks: tuple[list[int], list[int]] = ([], [])
        reasons, advised = dict[int, str](), None
        while row is not None and len(whole) < ROWS and row.number == first + len(whole):
            values: Sequence[Any] = ("", "")
            reason = row.reason
            if row.value is not None and not reason:
                try:
                    values = pair(row.value)
                except LookupError as error:
                    reason, advised = str(error.args[0]), advised or remedy(row.value)
            mark = row.mark | MALFORMED if reason else row.mark
            for value, texts, own in zip(values, sides, marks, strict=True):
                if isinstance(value, str) and "\n" not in value:
                    texts.append(value)
                    own.append(mark)
                    continue
                text, problem = _repaired(value)
                if problem == MALFORMED:
                    reason = f"expected a string, got {type(value).__name__}"
                texts.append(text)
                own.append(mark | problem)
            if reason:
                reasons[len(whole)] = reason
            whole.append(row.line)
            reached = row.reached
            row = next(numbered, None)
        lines = whole if any(whole) else ()
        block = Raw(name, "", first, None, unit, reached, reasons, advised, lines, encoding)
        one, other = (
            replace(block, text="\n".join(texts), marks=numpy.array(own, numpy.uint8))
            for texts, own in zip(sides, marks, strict=True)
        )
        yield one, other


def _repaired(value: Any) -> tuple[str, int]:
    """Return a value as one line, and the bit of its problem (see Kind.bit), or 0. None is an empty line."""
    if value is None:
        return "", 0
    if not isinstance(value, str):
        return "", MALFORMED
    return value.replace("\r\n", " ").replace("\n", " "), BREAK


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
