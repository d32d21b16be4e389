"""Options for files of sentence pairs, and for pairs that have problems."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.column_options import two_columns, two_names
from regard.data import Choices, Pairs, read_pairs
from regard.data.fetch import ANY_EDITION
from regard.errors import ArgumentError, DataError, Setting, UnknownName, message

__all__ = ["as_options", "given_pairs", "read_choices"]

SourceFiles = Annotated[
    list[Path] | None,
    typer.Option("--source", metavar="FILE", help="File of source sentences; may be repeated."),
]
TargetFiles = Annotated[
    list[Path] | None,
    typer.Option("--target", metavar="FILE", help="File of target sentences, parallel to --source."),
]
TabbedFiles = Annotated[
    list[Path] | None,
    typer.Option("--tsv", metavar="FILE", help="TSV file of pairs, instead of --source and --target."),
]
JsonFiles = Annotated[
    list[Path] | None,
    typer.Option("--jsonl", metavar="FILE", help="JSON lines file of pairs."),
]
Columns = Annotated[
    str, typer.Option(metavar="A,B", help="Columns of --tsv: two numbers from 1, or two names of its header.")
]
Fields = Annotated[
    str,
    typer.Option(
        "--fields", metavar="A,B", help="Fields of --jsonl: two names; a.b is field b inside field a."
    ),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--choose",
        metavar="NAME=VALUE",
        help="What to do with pairs that have problems: invalid=replace, uneven=skip, longest=200, ...",
    ),
]


def given_pairs(
    command: str,
    source: list[Path] | None,
    target: list[Path] | None,
    tsv: list[Path] | None,
    jsonl: list[Path] | None,
    columns: str,
    names: str,
    choose: list[str] | None,
) -> Pairs:
    """Return the pairs that the options name; raise ArgumentError unless they name one data source."""
    formats = (source or target, tsv, jsonl)
    if sum(map(bool, formats)) != 1 or bool(source) != bool(target):
        problem = "name the data in exactly one way"
        expected = "--source and --target, or --tsv, or --jsonl"
        raise ArgumentError(message(command, problem, expected=expected))
    return read_pairs(
        source or None,
        target or None,
        tsv=tsv or None,
        jsonl=jsonl or None,
        columns=two_columns(columns),
        fields=two_names("--fields", names),
        choices=read_choices(choose or []),
    )


def as_options(error: DataError) -> DataError:
    """Return the error with command-line options in its hint instead of Python code.

    >>> hint = ("fix the data, or use ", Setting("Choices", "invalid", "replace"))
    >>> print(as_options(DataError(message("a.ko, line 3", "not valid UTF-8", hint=hint))))
    a.ko, line 3: not valid UTF-8
    hint: fix the data, or use --choose invalid=replace
    """
    return DataError(error.message.spelled(_option))


def _option(setting: Setting) -> str:
    """Return a setting of the data in the form of an option of regard data."""
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    return "--any-edition" if setting == ANY_EDITION else f"--{setting.name}"


def read_choices(assignments: list[str]) -> Choices:
    """Parse the values of --choose, NAME=VALUE.

    >>> read_choices(["invalid=replace", "longest=200"])
    Choices(invalid='replace', longest=200)
    """
    names = [field.name for field in fields(Choices)]
    chosen: dict[str, Any] = {}
    for each in assignments:
        name, equals, value = each.partition("=")
        if not equals:
            raise ArgumentError(
                message("--choose", f"{each!r}", expected="NAME=VALUE, as in invalid=replace")
            )
        if name not in names:
            raise UnknownName("choice", name, names)
        chosen[name] = value
        if name in ("longest", "ratio"):
            try:
                chosen[name] = None if value == "none" else (int if name == "longest" else float)(value)
            except ValueError:
                expected = "a number, or none"
                raise ArgumentError(message("--choose", f"{each!r}", expected=expected)) from None
    return Choices(**chosen)
