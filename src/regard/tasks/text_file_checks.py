"""Check the beginning of text files: a table that is read as sentences, or files in different encodings."""

from __future__ import annotations

import codecs
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.data.table_formats import check_plain_text, file_start, rename_command, text_start
from regard.data.text_encoding import TITLES, likely_encoding, other_encoding
from regard.errors import DataError, Hint, RegardWarning, Setting, message, shell_word, shown

__all__ = ["check_separator", "check_sides", "check_text_files", "is_utf_8", "report_tables", "same_texts"]

LINES, SHARE = 3, 0.9
"""Minimum number of lines of a table, and the fraction of its lines that have the same number of columns."""

FOREIGN = 4
"""Minimum number of bytes that are not ASCII from which the encoding of a file is guessed."""

SAME = 100
"""Number of lines at the beginning of two files that are compared."""

SEPARATORS = {";": "semicolons", ",": "commas", "|": "vertical bars"}


def check_text_files(files: Iterable[str | Path], encoding: str | None = None) -> None:
    """Raise DataError if files that are read together are in different encodings, and name the odd ones.

    files: the files. Standard input (-), and files that cannot be read, are not checked.
    encoding: the encoding that the user has named for all files; then nothing is checked.
    """
    if other_encoding(encoding) is not None:
        return
    found = {str(file): _encoding(file_start(file)) for file in files}
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


def _encoding(data: bytes) -> str:
    """Return the encoding of the beginning of a file; "" if it is ASCII or not known."""
    if len(re.findall(rb"[\x80-\xff]", data)) < FOREIGN:
        return ""
    if name := likely_encoding(data):
        return name
    text = data.decode("utf-8", "replace")
    return "utf-8" if text.count("\ufffd") < sum(not each.isascii() for each in text) / 2 else ""
