"""Read the sentence pairs that the options of a command name, such as --source and --target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from regard.cli.options import DEFAULT_COLUMNS
from regard.cli.usage_errors import FORMATS
from regard.data import Choices, Pairs, read_pairs
from regard.data.column_names import two_columns, two_names
from regard.data.line_io import check_standard_input
from regard.data.pairs import LinePairs, PairStream, RowPairs
from regard.errors import ArgumentError, UnknownName, message, shell_word
from regard.runs.run_folder import config_of
from regard.tasks.file_checks import check_first_lines, check_sides, columns_of_header

__all__ = ["PairFiles", "read_choices"]


@dataclass(frozen=True)
class PairFiles:
    """The files of sentence pairs on the command line. Each field has the name of its option."""

    source: list[str] | None
    target: list[str] | None
    tsv: list[str] | None
    jsonl: list[str] | None
    columns: str
    fields: str
    encoding: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], command: str, run: Path | None = None) -> PairFiles:
        """Return the files that the options of a command name.

        Raise ArgumentError unless exactly one kind of files is named: --source with --target, --tsv, or
        --jsonl.

        options: the values of all options of the command.
        command: the command, for the error message.
        run: a run folder. Its columns are used if --columns is not set, and the header of --tsv names them.
        """
        files = cls(**{field.name: options[field.name] for field in fields(cls)})
        files.check(command)
        if run is None or files.columns != DEFAULT_COLUMNS or not files.tsv:
            return files
        columns = config_of(run).get("data", {}).get("columns")
        return replace(files, columns=columns_of_header(files.tsv, columns, files.encoding) or files.columns)

    @property
    def all(self) -> list[str]:
        """The names of all files of --source, --target, --tsv and --jsonl."""
        return [path for paths in (self.source, self.target, self.tsv, self.jsonl) for path in paths or ()]

    def check(self, command: str) -> None:
        """Raise ArgumentError unless exactly one kind of files is named on the command line.

        The three kinds are --source together with --target, --tsv, and --jsonl.

        command: the command, for the error message.
        """
        ways = (self.source or self.target, self.tsv, self.jsonl)
        if sum(map(bool, ways)) != 1 or bool(self.source) != bool(self.target):
            problem = "more than one kind of files is named, or the source or the target is missing"
            problem = problem if self.all else "no files of pairs are named"
            expected, hint = "--source and --target, or --tsv, or --jsonl", ""
            if side := self.source or self.target:
                if sum(map(bool, ways)) == 1:
                    problem = f"{'--target' if self.source else '--source'} is missing"
                way = FORMATS.get(Path(side[0].removesuffix(".gz")).suffix.lower())
                hint = f"a file that has source and target: {way} {shell_word(side[0])}" if way else ""
            raise ArgumentError(message(command, problem, expected=expected, hint=hint))

    def pairs(self, choose: list[str] | None) -> Pairs:
        """Return the sentence pairs of the files as a Pairs object, which can be checked and split.

        choose: the values of --choose, such as "invalid=replace".
        """
        columns, names = two_columns(self.columns), two_names("--fields", self.fields)
        choices = read_choices(choose or [])
        check_first_lines(self.tsv or (), columns, self.encoding)
        check_sides(self.source, self.target, self.tsv, self.encoding, invalid=choices.invalid)
        return read_pairs(
            self.source or None,
            self.target or None,
            tsv=self.tsv or None,
            jsonl=self.jsonl or None,
            columns=columns,
            fields=names,
            encoding=self.encoding,
            choices=choices,
        )

    def stream(self) -> PairStream:
        """Return the sentence pairs of the files as a stream, which can be read only once.

        One of the files may be "-", for standard input.
        """
        if self.source and self.target:
            check_standard_input(*self.source, *self.target)
            if len(self.source) != len(self.target):
                problem = f"{len(self.source)} source files and {len(self.target)} target files"
                expected = "one target file for each source file, in the same order"
                raise ArgumentError(message("--source and --target", problem, expected=expected))
            check_sides(self.source, self.target, None, self.encoding)
            return LinePairs(self.source, self.target, self.encoding)
        columns, names = two_columns(self.columns), two_names("--fields", self.fields)
        check_first_lines(self.tsv or (), columns, self.encoding)
        check_sides(None, None, self.tsv, self.encoding)
        return RowPairs.read(self.tsv, self.jsonl, columns, names, self.encoding)


def read_choices(assignments: list[str]) -> Choices:
    """Parse the values of --choose, each of the form NAME=VALUE.

    >>> read_choices(["invalid=replace", "longest=200"])
    Choices(invalid='replace', longest=200)
    """
    names = [field.name for field in fields(Choices)]
    chosen: dict[str, Any] = {}
    for each in assignments:
        name, equals, value = each.partition("=")
        if not equals:
            raise ArgumentError(message("--choose", f"{each!r}", expected="NAME=VALUE, e.g. invalid=replace"))
        if name not in names:
            raise UnknownName("choice", name, names)
        chosen[name] = value
        if name in ("longest", "ratio"):
            try:
                chosen[name] = None if value == "none" else (int if name == "longest" else float)(value)
            except ValueError:
                expected = "a number, or none"
                raise ArgumentError(
                    message("--choose", f"the value in {each!r} is not a number", expected=expected)
                ) from None
    return Choices(**chosen)
