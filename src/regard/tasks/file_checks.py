"""Check the beginning of files of sentences: header lines, tables that are read as text, other encodings."""

from __future__ import annotations

import codecs
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.column_names import is_column_name
from regard.data.line_io import STANDARD
from regard.data.read_text import START, checked_path, read_blocks
from regard.data.table_formats import (
    COLUMNS,
    check_plain_text,
    column_rows,
    file_start,
    is_csv,
    rename_command,
    text_start,
)
from regard.data.text_encoding import TITLES, is_utf_8_text, likely_encoding, other_encoding
from regard.errors import DataError, Hint, RegardWarning, Setting, message, printable, shell_word, shown

LINES, SHARE = 3, 0.9
"""Minimum number of lines of a table, and the fraction of its lines that have the same number of columns."""

FOREIGN = 4
"""Minimum number of bytes that are not ASCII from which the encoding of a file is guessed."""

SAME = 100
"""Number of lines at the beginning of two files that are compared."""

ENCODING = Setting("read_pairs", "encoding")

SEPARATORS = {";": "semicolons", ",": "commas", "|": "vertical bars"}

DEFAULT = (1, 2)
"""The value of --columns that is used if the user names no columns."""

COMPARED = 100
"""Maximum number of rows with which the first row is compared."""

PUNCTUATION = re.compile(r"[.!?…。！？؟।,;:]")

NAME_LENGTH, NAME_WORDS = 30, 3
"""Maximum length of a column name, in characters and in words."""

SENTENCES = 0.9
"""Minimum fraction of rows with two sentences. If it is reached, a first row with two names is suspicious."""


def check_text_files(files: Iterable[str | Path], encoding: str | None = None) -> None:
    """Raise DataError if files that are read together are in different encodings, and name the odd ones.

    files: the files. Standard input (-), and files that cannot be read, are not checked.
    encoding: the encoding that the user has named for all files. If it is not UTF-8, a file that is probably
        UTF-8 is a warning; the reader of the file raises an error if this is certain.
    """
    found = {str(file): _encoding(file_start(file)) for file in files}
    if other_encoding(encoding) is not None:
        probable = [file for file, name in found.items() if name == "utf-8"]
        certain = [file for file in probable if is_utf_8_text(file_start(file)[:START], str(encoding))]
        for file in () if certain else probable:
            problem = f"the file is probably UTF-8, but it is read as {encoding}"
            advice = ("convert the other files to UTF-8 with iconv, and remove ", ENCODING)
            warnings.warn(message(shown(file), problem, hint=advice), RegardWarning, stacklevel=2)
        return
    kinds = Counter(name for name in found.values() if name)
    if len(kinds) < 2:
        return
    odd = [(file, name) for file, name in found.items() if name not in ("", "utf-8")]
    problem = "; ".join(f"{shown(file)} is probably {TITLES[name]}" for file, name in odd)
    if utf_8 := [shown(file) for file, name in found.items() if name == "utf-8"]:
        problem = f"{problem}, but {utf_8[0]} is UTF-8"
    (file, name), more = odd[0], ", and the other files likewise" if len(odd) > 1 else ""
    path = Path(file)
    converted = path.with_name(f"{path.name.removesuffix('.gz')}.utf8")
    read = f"gzip -dc {shell_word(file)} | iconv" if path.suffix == ".gz" else "iconv"
    given = "" if path.suffix == ".gz" else f" {shell_word(file)}"
    hint = f"convert it: {read} -f {name.upper()} -t UTF-8{given} > {shell_word(converted)}{more}"
    raise DataError(message("the files have different encodings", problem, hint=hint))


def report_tables(files: Iterable[str | Path], hint: Hint, encoding: str | None = None) -> None:
    """Warn if the lines of a text file have several columns, which are read as one sentence.

    files: the files. Standard input (-), and files that cannot be read, are not checked.
    hint: what to do about it.
    encoding: the encoding of the files; None is UTF-8.
    """
    for file in files:
        lines = [line for line in text_start(file, encoding).split("\n")[:-1] if line.strip()]
        (columns, count), *_ = Counter(line.count("\t") + 1 for line in lines).most_common(1) or [(1, 0)]
        if columns > 1 and len(lines) >= LINES and count >= SHARE * len(lines):
            problem = f"each line has {columns} columns, separated by tabs, and is read as one sentence"
            warnings.warn(message(shown(file), problem, hint=hint), RegardWarning, stacklevel=2)


def is_utf_8(file: str | Path) -> bool:
    """Return whether the beginning of a file, plain or gzip, is valid UTF-8 without NUL characters."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(file_start(file))
    except UnicodeDecodeError:
        return False


def same_texts(
    file: str | Path, other: str | Path, encodings: tuple[str | None, str | None] = (None, None)
) -> bool:
    """Return whether two files are the same, or begin with the same lines, maybe in different encodings.

    encodings: the encoding of each file; None is UTF-8.
    """
    try:
        if os.path.samefile(file, other):
            return True
    except (OSError, ValueError):
        return False
    both = map(text_start, (file, other), encodings)
    lines, others = (text.removeprefix("\ufeff").splitlines()[:SAME] for text in both)
    count = min(len(lines), len(others)) - 1  # the last line may be cut
    return count >= LINES and lines[:count] == others[:count]


def check_separator(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Raise DataError if the columns of a file that is read as TSV are not separated by tabs.

    rows: the first rows, split at tabs.
    """
    lines = [row[0] for row in rows if row and row[0].strip()]
    if len(lines) < 2 or any(len(row) > 1 for row in rows):
        return
    for separator, name in SEPARATORS.items():
        counts = {line.count(separator) for line in lines}
        if len(counts) == 1 and counts != {0}:
            problem = f"the columns are separated by {name}, not by tabs"
            hint = f"rename the file: {rename_command(path)}"
            expected = "tabs, or a file name that ends in .csv"
            raise DataError(message(shown(path), problem, expected=expected, hint=hint))


def check_sides(
    source: Sequence[str] | None,
    target: Sequence[str] | None,
    tsv: Sequence[str] | None,
    encoding: str | None,
    *,
    invalid: str = "error",
) -> None:
    """Check files of sentence pairs: tables that are read as text, and files in different encodings.

    invalid: what to do with invalid bytes (Choices.invalid). The encodings are checked if it is "error".
    """
    sides = [*(source or ()), *(target or ())]
    check_plain_text(sides, encoding)
    if invalid == "error":
        check_text_files([*sides, *(tsv or ())], encoding)
    report_tables(
        sides, ("if the columns are source and target, use ", Setting("read_pairs", "tsv")), encoding
    )


SIDES = ("source", "target")
"""Names of the sides of pairs if no run has other names."""


def check_first_lines(
    tsv: Iterable[str],
    columns: Sequence[int | str],
    encoding: str | None = None,
    sides: Sequence[str] = SIDES,
) -> None:
    """Raise DataError if --columns has numbers, but the first line of a TSV or CSV file is a header line.

    A header line is recognized by usual column names, such as "source" or "en", in both columns, or by a
    column that has a word in the first line and numbers in the next lines.

    Warn if the first line has two short texts without punctuation and the next lines have sentences: it may
    be a header line, but it is read as a pair. Warn also if one of the two columns has a number in the first
    line and there are more columns: it may be an id.

    tsv: the files. Standard input (-) is not checked, because it can be read only once.
    columns: the value of --columns: two numbers or two names.
    encoding: the encoding of the files; None is UTF-8.
    sides: the names of source and target, from sides_of_run(). The errors recommend columns in this order.
    """
    if isinstance(columns[0], str):
        return
    for path in tsv:
        rows = iter(()) if path == STANDARD else _rows(path, encoding)
        cells, following = next(rows, []), list(islice(rows, COMPARED))
        if not is_csv(checked_path(path)):
            check_separator(checked_path(path), [cells, *following])
        names = [cells[column - 1].strip() for column in map(int, columns) if 0 < column <= len(cells)]
        if len(names) == 2:
            place, named = f"{shown(path)}, line 1", replace(COLUMNS, value=printable(",".join(names)))
            above_numbers = len(following) > 1 and any(
                all(index < len(row) and row[index].strip().isdecimal() for row in following)
                for index, cell in enumerate(cells)
                if _is_name(cell)
            )
            if all(map(is_column_name, names)) or above_numbers:
                problem = f"the line looks like a header: {printable(' and '.join(names))}"
                one, other = (replace(COLUMNS, value=printable(",".join(e))) for e in (names, names[::-1]))
                order = _in_order(names, sides)
                hint: Hint = ("use ", one if order == names else other, "; or remove the line")
                if not order:
                    both = (f" if the source is {printable(names[0])}, or ", other, "; or remove the line")
                    hint = ("use ", one, *both)
                if len(cells) > 2 and tuple(columns) == DEFAULT:
                    hint = f"name two columns, --columns A,B, of {printable(', '.join(cells))[:200]}"
                raise DataError(message(place, problem, hint=hint))
            if all(map(_is_name, names)) and _are_sentences(following, list(map(int, columns))):
                texts = printable(" and ".join(names))
                problem = f"the line may be a header, but it is read as a sentence pair: {texts}"
                advice: Hint = ("if it is a header, use ", named)
                warnings.warn(message(place, problem, hint=advice), RegardWarning, stacklevel=2)
        if len(cells) > 2 and sum(name.isdecimal() for name in names) == 1:
            used = f"columns {' and '.join(map(str, columns))}: {printable(' and '.join(names))[:100]}"
            problem = f"the file has {len(cells)} columns, and the pairs are in {used}"
            advice = ("if one of them is a number of the line, name other columns: ", COLUMNS)
            warnings.warn(message(shown(path), problem, hint=advice), RegardWarning, stacklevel=2)


def columns_of_header(tsv: Iterable[str], columns: Sequence[int | str] | None, encoding: str | None) -> str:
    """Return the columns of a run as the value of --columns, if the first line of each file has their names.

    Otherwise, or if the run has no names of columns, return "".

    tsv: the files.
    columns: the setting data.columns of the run.
    """
    names = [each for each in columns or () if isinstance(each, str)]
    files = list(tsv)
    if len(names) != 2 or not files or STANDARD in files:
        return ""
    headers = [next(_rows(file, encoding), []) for file in files]
    has_names = all({*names} <= {cell.strip() for cell in header} for header in headers)
    return ",".join(names) if has_names else ""


def sides_of_run(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return names of source and target of a run: its columns, its fields or its first files.

    data: the section [data] of its config.toml.

    >>> sides_of_run({"source": ["train.ko"], "target": ["train.en"]})
    ('train.ko', 'train.en')
    """
    if data.get("built_in") == "korean":
        return "ko", "en"
    files = [data.get(side) or [""] for side in SIDES]
    for names in (data.get("columns"), data.get("fields"), [Path(each[0]).name for each in files]):
        if names and all(names) and all(isinstance(name, str) for name in names):
            return names[0], names[1]
    return "source", "target"


def _in_order(names: Sequence[str], sides: Sequence[str]) -> list[str]:
    """Return two names of columns in the order of source and target; empty if the order is not known.

    sides: names of source and target. The name of a column is that of a side if they have a word in common,
        or its first two letters, as "ko" and "Korean".

    >>> _in_order(["en", "ko"], ["Source (ko)", "Target (en)"]), _in_order(["en", "ko"], SIDES)
    (['ko', 'en'], [])
    """
    one, other = ({word[:2] for word in re.findall(r"[^\W\d_]+", side.lower())} for side in sides)
    first, second = ({word[:2] for word in re.findall(r"[^\W\d_]+", name.lower())} for name in names)
    straight, crossed = len(first & one) + len(second & other), len(first & other) + len(second & one)
    ordered = list(names) if straight > crossed else [*reversed(names)]
    return [] if straight == crossed else ordered


def _rows(path: str, encoding: str | None) -> Iterator[list[str]]:
    """Yield the cells of each row of a TSV or CSV file. Invalid bytes of TSV files are replaced."""
    file = checked_path(path)
    if is_csv(file):
        yield from (row.value for row in column_rows(file, encoding) if row.value is not None)
        return
    for raw in read_blocks(file, encoding):
        for line in raw.text.split("\n"):
            yield line.encode("utf-8", "replace").decode().split("\t")


def _are_sentences(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> bool:
    """Return whether nearly all rows have a sentence in each of these columns; False for less than 3 rows."""
    pairs = [[row[column - 1] for column in columns] for row in rows if len(row) >= max(columns)]
    sentences = [
        all(PUNCTUATION.search(each) or len(each.split()) > NAME_WORDS for each in pair) for pair in pairs
    ]
    return len(pairs) > 2 and sum(sentences) >= SENTENCES * len(rows)


def _is_name(cell: str) -> bool:
    """Return whether a cell may be the name of a column: a few words without punctuation.

    >>> [_is_name(each) for each in ("Deutsch", "sentence 1", "12", "Go.")]
    [True, True, False, False]
    """
    short = len(cell) <= NAME_LENGTH and 0 < len(cell.split()) <= NAME_WORDS
    return short and any(map(str.isalpha, cell)) and PUNCTUATION.search(cell) is None


def _encoding(data: bytes) -> str:
    """Return the encoding of the beginning of a file; "" if it is ASCII or not known."""
    if len(re.findall(rb"[\x80-\xff]", data)) < FOREIGN:
        return ""
    if name := likely_encoding(data):
        return name
    text = data.decode("utf-8", "replace")
    return "utf-8" if text.count("\ufffd") < sum(not each.isascii() for each in text) / 2 else ""
