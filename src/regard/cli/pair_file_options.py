"""The options that name files of sentence pairs, for all commands. This module does not import torch."""

from __future__ import annotations

from typing import Any

import typer

from regard.tasks.column_names import COLUMNS, FIELDS

__all__ = ["Files", "pair_option", "train_option"]

Files = list[str] | None

PAIR_FILES = {
    "--source": "File of source sentences, one per line; may be repeated.",
    "--target": "File of translations: line N is the translation of line N of --source.",
    "--tsv": "TSV file of sentence pairs, instead of --source and --target (see --columns).",
    "--jsonl": "JSON lines file of sentence pairs, instead of --source and --target (see --fields).",
    "--columns": COLUMNS,
    "--fields": FIELDS,
}
"""Option for files of sentence pairs -> its help text."""

TRAIN_FILES = {
    "--train-file": "Language models: text file. Classification: file of labelled texts (.tsv or .jsonl). "
    "May be repeated.",
    "--tsv": "TSV file of sentence pairs, instead of --source and --target, or of labelled texts for "
    "classification (see --columns).",
    "--jsonl": "JSON lines file of sentence pairs, instead of --source and --target, or of labelled texts "
    "for classification (see --fields).",
    "--columns": "The columns of --tsv: numbers (the first column is 1) or names from the header line. "
    "Translation: source,target. Classification: label,text or, for pairs of texts, label,text,second.",
    "--fields": "The fields of --jsonl: names, in the order of --columns. a.b is the field b inside the "
    "field a.",
}
"""Option of `regard train` whose files differ between tasks -> its help text."""


def pair_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return one of the options in PAIR_FILES. panel: the heading under which the help lists it."""
    return _option(name, PAIR_FILES[name], panel, **more)


def train_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return one of the options in TRAIN_FILES. panel: as in pair_option()."""
    return _option(name, TRAIN_FILES[name], panel, **more)


def _option(name: str, text: str, panel: str | None, **more: Any) -> Any:
    metavar = "A,B" if name in ("--columns", "--fields") else "FILE"
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)
