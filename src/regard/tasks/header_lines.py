"""Find header lines in TSV and CSV files of sentence pairs: check_first_lines() and columns_of_header()."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from regard.data.column_names import is_column_name
from regard.data.line_io import STANDARD
from regard.data.read_text import checked_path, read_blocks
from regard.data.table_formats import COLUMNS, column_rows, is_csv
from regard.errors import DataError, Hint, RegardWarning, message, printable, shown
from regard.tasks.text_file_checks import check_separator

__all__ = ["check_first_lines", "columns_of_header"]

DEFAULT = (1, 2)
"""The value of --columns that is used if the user names no columns."""

COMPARED = 100
"""Maximum number of rows with which the first row is compared."""

PUNCTUATION = re.compile(r"[.!?…。！？؟।,;:]")

NAME_LENGTH, NAME_WORDS = 30, 3
"""Maximum length of a column name, in characters and in words."""

SENTENCES = 0.9
"""Minimum fraction of rows with two sentences. If it is reached, a first row with two names is suspicious."""


def check_first_lines(tsv: Iterable[str], columns: Sequence[int | str], encoding: str | None = None) -> None:
    """Raise DataError if --columns has numbers, but the first line of a TSV or CSV file is a header line.

    A header line is recognized by usual column names, such as "source" or "en", in both columns, or by a
    column that has a word in the first line and numbers in the next lines.

    Warn if the first line has two short texts without punctuation and the next lines have sentences: it may
    be a header line, but it is read as a pair. Warn also if one of the two columns has a number in the first
    line and there are more columns: it may be an id.

    tsv: the files. Standard input (-) is not checked, because it can be read only once.
    columns: the value of --columns: two numbers or two names.
    encoding: the encoding of the files; None is UTF-8.
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
            if all(map(is_column_name, names)) or _above_numbers(cells, following):
                problem = f"the line looks like a header: {printable(' and '.join(names))}"
                hint: Hint = ("use ", named, "; or remove the line")
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


def _rows(path: str, encoding: str | None) -> Iterator[list[str]]:
    """Yield the cells of each row of a TSV or CSV file. Invalid bytes of TSV files are replaced."""
    file = checked_path(path)
    if is_csv(file):
        yield from (row.value for row in column_rows(file, encoding) if row.value is not None)
        return
    for raw in read_blocks(file, encoding):
        for line in raw.text.split("\n"):
            yield line.encode("utf-8", "replace").decode().split("\t")


def _above_numbers(first: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Return whether a column has a name in the first row and a number in all following rows."""
    if len(following) < 2:
        return False
    columns = (index for index, cell in enumerate(first) if _is_name(cell))
    return any(
        all(index < len(row) and row[index].strip().isdecimal() for row in following) for index in columns
    )


def _are_sentences(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> bool:
    """Return whether nearly all rows have a sentence in each of these columns; False for less than 3 rows."""
    pairs = [[row[column - 1] for column in columns] for row in rows if len(row) >= max(columns)]
    return len(pairs) > 2 and sum(all(map(_is_sentence, pair)) for pair in pairs) >= SENTENCES * len(rows)


def _is_name(cell: str) -> bool:
    """Return whether a cell may be the name of a column: a few words without punctuation.

    >>> [_is_name(each) for each in ("Deutsch", "sentence 1", "12", "Go.")]
    [True, True, False, False]
    """
    short = len(cell) <= NAME_LENGTH and 0 < len(cell.split()) <= NAME_WORDS
    return short and any(map(str.isalpha, cell)) and PUNCTUATION.search(cell) is None


def _is_sentence(cell: str) -> bool:
    return PUNCTUATION.search(cell) is not None or len(cell.split()) > NAME_WORDS
