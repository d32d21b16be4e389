"""Options for files of sentence pairs, and for pairs that have problems."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from regard.cli.column_options import two_columns, two_names
from regard.data import Choices, Pairs, read_pairs
from regard.data.line_io import STANDARD
from regard.data.pair_stream import LinePairs, PairStream, RowPairs
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["PairFiles", "check_standard_input", "read_choices"]

SourceFiles = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="FILE", help="File of source sentences; may be repeated."),
]
TargetFiles = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="File of target sentences, parallel to --source."),
]
SourceLines = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="FILE",
        help="Source sentences, one per line; - is standard input. May be repeated.",
    ),
]
TargetLines = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="Target sentences, one per line, parallel to --source."),
]
TsvFiles = Annotated[
    list[str] | None,
    typer.Option("--tsv", metavar="FILE", help="TSV file of pairs, instead of --source and --target."),
]
JsonlFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--jsonl", metavar="FILE", help="JSON lines file of pairs, instead of --source and --target."
    ),
]
Columns = Annotated[
    str,
    typer.Option(
        "--columns", metavar="A,B", help="Columns of --tsv: two numbers from 1, or two names of its header."
    ),
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


@dataclass(frozen=True)
class PairFiles:
    """The files of pairs that the options of a command name."""

    source: list[str] | None
    target: list[str] | None
    tsv: list[str] | None
    jsonl: list[str] | None
    columns: str
    fields: str

    @property
    def all(self) -> list[str]:
        """All files."""
        return [path for paths in (self.source, self.target, self.tsv, self.jsonl) for path in paths or ()]

    def check(self, command: str) -> None:
        """Raise ArgumentError unless the options name both sides in exactly one way."""
        ways = (self.source or self.target, self.tsv, self.jsonl)
        if sum(map(bool, ways)) != 1 or bool(self.source) != bool(self.target):
            problem = "the pairs are named in more than one way, or only in part"
            problem = problem if self.all else "no pairs are named"
            expected = "--source and --target, or --tsv, or --jsonl"
            raise ArgumentError(message(command, problem, expected=expected))

    def pairs(self, choose: list[str] | None) -> Pairs:
        """Return the pairs to check; choose: the values of --choose."""
        return read_pairs(
            self.source or None,
            self.target or None,
            tsv=self.tsv or None,
            jsonl=self.jsonl or None,
            columns=two_columns(self.columns),
            fields=two_names("--fields", self.fields),
            choices=read_choices(choose or []),
        )

    def stream(self) -> PairStream:
        """Return the pairs to score, to be read once; one file of --source and --target may be "-"."""
        if self.source and self.target:
            check_standard_input(*self.source, *self.target)
            if len(self.source) != len(self.target):
                problem = f"{len(self.source)} source files and {len(self.target)} target files"
                expected = "one target file for each source file, in the same order"
                raise ArgumentError(message("--source and --target", problem, expected=expected))
            return LinePairs(self.source, self.target)
        columns, names = two_columns(self.columns), two_names("--fields", self.fields)
        return RowPairs.read(self.tsv, self.jsonl, columns, names)


def check_standard_input(*files: str | None) -> None:
    """Raise ArgumentError if more than one of the files is "-", standard input."""
    if files.count(STANDARD) > 1:
        raise ArgumentError(message("-", "standard input is named twice, but can be read only once"))


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
