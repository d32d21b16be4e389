"""The options of the command line for files of labelled texts: --tsv, --jsonl, --columns and --fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.labelled_text import FORMATS as LABELLED_FORMATS
from regard.errors import ArgumentError, message
from regard.tasks.file_options import train_files

__all__ = ["FORMATS", "OWN_OPTIONS", "labelled_columns", "labelled_files"]

DIGITS = 9
"""Maximum number of digits of a column number. Longer numbers are read as names of columns."""

NAMES = ("label", "text", "second")
"""The settings in [data] that --columns and --fields set. For example, --columns 2,1 sets label = 2 and text
= 1."""

FORMATS = {"tsv": "columns", "jsonl": "fields"}
"""The options for files. For each, the value is the option for the columns or fields of these files."""

OWN_OPTIONS = (*FORMATS, *FORMATS.values(), *(f"valid_{each}" for each in FORMATS))
"""The options of `regard train` that labelled_files() reads."""


def labelled_columns(option: str, text: str, count: int | None = None) -> dict[str, Any]:
    """Parse the value of --columns or --fields, for example "2,1".

    The value lists the columns of the label, the text and, for pairs, the second text. The result is a dict
    with the keys "label", "text" and, for pairs, "second".

    option: --columns (numbers or names) or --fields (names).
    text: the value of the option.
    count: the expected number of columns. None: 2 or 3 columns.

    >>> labelled_columns("--columns", "2,1"), labelled_columns("--fields", "class,a,b")["second"]
    ({'label': 2, 'text': 1}, 'b')
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(parts) not in ((2, 3) if count is None else (count,)):
        expected = "two or three columns" if count is None else f"{count} columns"
        expected += f", separated by commas: {','.join(NAMES[: count or len(NAMES)])}"
        raise ArgumentError(message(option, f"{text[:80]!r}", expected=expected))
    numbers = option == "--columns" and all(part.isdecimal() and len(part) <= DIGITS for part in parts)
    return dict(zip(NAMES, map(int, parts) if numbers else parts, strict=False))


def _has_suffix(file: str, way: str) -> bool:
    """Return whether the name of a file implies the format "tsv" or "jsonl"."""
    suffixes = [suffix.lower() for suffix in Path(file).suffixes if suffix.lower() != ".gz"]
    return bool(suffixes) and suffixes[-1] in LABELLED_FORMATS[way].suffixes


def labelled_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options --tsv, --jsonl, --columns and --fields of `regard train` to the settings [data].

    --columns and --fields are also for files of --train-file, if their names end with .csv, .jsonl etc.

    >>> labelled_files({"tsv": ["a.tsv"], "columns": "label,review"})
    {'train_file': ['a.tsv'], 'format': 'tsv', 'label': 'label', 'text': 'review'}
    """
    data = train_files(options)
    for way, columns in FORMATS.items():
        if options.get(columns) is None:
            continue
        files = [] if "format" in data else list(options.get("train_file") or ())
        if data.get("format") != way and not (files and all(_has_suffix(file, way) for file in files)):
            hint = f"name the files with --{way} instead of --train-file" if files else ""
            raise ArgumentError(message(f"--{columns}", f"it needs --{way}", hint=hint))
        data |= labelled_columns(f"--{columns}", options[columns])
    return data
