"""Options for files of sentence pairs, shared by all commands. This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from regard.cli.command_parameters import typer_option
from regard.data.column_names import COLUMNS, FIELDS
from regard.tasks.file_options import ENCODING, SOURCE, TARGET

__all__ = ["Encoding", "Files", "pair_option"]

Files = list[str] | None

Encoding = Annotated[str | None, typer_option(ENCODING)]
"""The encoding of the text files that a command reads."""

PAIR_FILES = {
    "--source": SOURCE.help,
    "--target": TARGET.help,
    "--tsv": "TSV or CSV file with sentence pairs, instead of --source and --target (see --columns). May be "
    "repeated.",
    "--jsonl": "JSON lines, JSON or Parquet file with sentence pairs, instead of --source and --target (see "
    "--fields). May be repeated.",
    "--columns": COLUMNS,
    "--fields": FIELDS,
}
"""Option for files of sentence pairs -> its help text."""


def pair_option(name: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option for files of sentence pairs.

    name: a key of PAIR_FILES, such as --source.
    panel: the heading under which the help lists the option.
    more: further arguments of typer.Option().
    """
    metavar = "A,B" if name in ("--columns", "--fields") else "FILE"
    return typer.Option(name, metavar=metavar, help=PAIR_FILES[name], rich_help_panel=panel, **more)
