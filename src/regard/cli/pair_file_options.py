"""The options that name files of sentence pairs, for all commands. This module does not import torch."""

from __future__ import annotations

from typing import Any

import typer

from regard.tasks.column_names import COLUMNS, FIELDS

__all__ = ["Files", "pair_option"]

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


def pair_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return one of the options in PAIR_FILES. panel: the heading under which the help lists it."""
    metavar = "A,B" if name in ("--columns", "--fields") else "FILE"
    return typer.Option(name, metavar=metavar, help=PAIR_FILES[name], rich_help_panel=panel, **more)
