"""Options for files of sentence pairs, shared by all commands. This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from regard.tasks.column_names import COLUMNS, FIELDS

__all__ = ["Encoding", "Files", "pair_option", "train_option"]

Files = list[str] | None

ENCODING = "Encoding of the text files, e.g. cp949 (Korean), shift_jis, gb18030, latin-1 or utf-16."

Encoding = Annotated[
    str | None, typer.Option("--encoding", metavar="NAME", help=ENCODING, show_default="utf-8")
]
"""The encoding of the text files that a command reads."""

PAIR_FILES = {
    "--source": "File with one source sentence per line. May be repeated.",
    "--target": "File with translations: line N is the translation of line N of --source. May be repeated.",
    "--tsv": "TSV or CSV file with sentence pairs, instead of --source and --target (see --columns). May be "
    "repeated.",
    "--jsonl": "JSON lines, JSON or Parquet file with sentence pairs, instead of --source and --target (see "
    "--fields). May be repeated.",
    "--columns": COLUMNS,
    "--fields": FIELDS,
}
"""Option for files of sentence pairs -> its help text."""

TRAIN_FILES = {
    "--train-file": "Language models: text file. Classification: file with labelled texts (.tsv, .csv, "
    ".jsonl, .json or .parquet). Captioning: file with captions (.tsv, .csv, .jsonl or .json). Answering: "
    "file with stories and questions (bAbI or .jsonl). May be repeated.",
    "--tsv": "TSV or CSV file (see --columns). Translation: sentence pairs, instead of --source and "
    "--target. Classification: labelled texts. Captioning: images and captions. May be repeated.",
    "--jsonl": "JSON lines, JSON or Parquet file (see --fields). Translation: sentence pairs, instead of "
    "--source and --target. Classification: labelled texts. Captioning: images and captions (JSON lines). "
    "Answering: stories and questions (JSON lines). May be repeated.",
    "--columns": "The columns of --tsv: numbers (the first column is 1) or names from the header line. "
    "Translation: source,target. Classification: label,text or, for pairs of texts, label,text,second.",
    "--fields": "The fields of --jsonl: names, in the order of --columns. a.b is the field b inside the "
    "field a.",
}
"""Option of `regard train` -> its help text, which says what the files contain for each task."""


def pair_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option for files of sentence pairs.

    name: a key of PAIR_FILES, such as --source.
    panel: the heading under which the help lists the option.
    more: further arguments of typer.Option().
    """
    return _option(name, PAIR_FILES[name], panel, **more)


def train_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option of `regard train` for files.

    name: a key of TRAIN_FILES, such as --train-file.
    panel: the heading under which the help lists the option.
    more: further arguments of typer.Option().
    """
    return _option(name, TRAIN_FILES[name], panel, **more)


def _option(name: str, text: str, panel: str | None, **more: Any) -> Any:
    metavar = "A,B" if name in ("--columns", "--fields") else "FILE"
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)
