"""Read the sentence pairs that the options of a command name, such as --source and --target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from regard.cli.open_runs import encoding_of
from regard.cli.options import DEFAULT_COLUMNS
from regard.cli.usage_errors import FORMATS
from regard.data import Choices, Pairs, read_pairs
from regard.data.column_names import two_columns, two_names
from regard.data.line_io import check_standard_input
from regard.data.pairs import PairStream
from regard.errors import ArgumentError, UnknownName, message, shell_word
from regard.runs.run_folder import config_of
from regard.tasks.file_checks import check_first_lines, check_sides, columns_of_header, sides_of_run


def checked_files(options: Mapping[str, Any], command: str) -> list[str]:
    """Return the names of the files of sentence pairs that the options of a command name.

    Raise ArgumentError unless exactly one kind of files is named: --source with --target, --tsv, or --jsonl.

    options: the values of all options of the command.
    command: the command, for the error message.
    """
    source, target, tsv, jsonl = (options[name] or [] for name in ("source", "target", "tsv", "jsonl"))
    files, kinds = [*source, *target, *tsv, *jsonl], sum(map(bool, (source or target, tsv, jsonl)))
    if kinds == 1 and bool(source) == bool(target):
        if len(source) != len(target):
            problem = f"{len(source)} source files and {len(target)} target files"
            expected = "one target file for each source file, in the same order"
            raise ArgumentError(message("--source and --target", problem, expected=expected))
        return files
    problem = "more than one kind of files is named, or the source or the target is missing"
    problem = problem if files else "no files of pairs are named"
    hint = ""
    if side := source or target:
        if kinds == 1:
            problem = f"{'--target' if source else '--source'} is missing"
        way = FORMATS.get(Path(side[0].removesuffix(".gz")).suffix.lower())
        hint = f"a file that has source and target: {way} {shell_word(side[0])}" if way else ""
    expected = "--source and --target, or --tsv, or --jsonl"
    raise ArgumentError(message(command, problem, expected=expected, hint=hint))


def chosen_pairs(options: Mapping[str, Any]) -> Pairs:
    """Return the sentence pairs of the files as a Pairs object, which can be checked and split."""
    columns, names = two_columns(options["columns"]), two_names("--fields", options["fields"])
    choices, encoding = read_choices(options["choose"] or []), options["encoding"]
    source, target, tsv = options["source"], options["target"], options["tsv"]
    check_first_lines(tsv or (), columns, encoding)
    check_sides(source, target, tsv, encoding, invalid=choices.invalid)
    more: dict[str, Any] = {"columns": columns, "fields": names, "encoding": encoding, "choices": choices}
    return read_pairs(source or None, target or None, tsv=tsv or None, jsonl=options["jsonl"] or None, **more)


def pair_stream(options: Mapping[str, Any], command: str, run: Path | None) -> PairStream:
    """Return the sentence pairs of the files as a stream, which can be read only once.

    One of the files may be "-", for standard input. The columns of the run are used if --columns is not set,
    and the header of --tsv names them.
    """
    checked_files(options, command)
    source, target, tsv = options["source"], options["target"], options["tsv"]
    named = (options[name] or () for name in ("source", "target", "tsv", "jsonl"))
    encoding, columns = options["encoding"], options["columns"]
    if run is not None:
        encoding = encoding_of(run, chain(*named), encoding)
    if source and target:
        check_standard_input(*source, *target)
        check_sides(source, target, None, encoding)
        return PairStream.lines(source, target, encoding)
    data = {} if run is None else config_of(run).get("data", {})
    if columns == DEFAULT_COLUMNS and tsv:
        columns = columns_of_header(tsv, data.get("columns"), encoding) or columns
    places, names = two_columns(columns), two_names("--fields", options["fields"])
    check_first_lines(tsv or (), places, encoding, sides_of_run(data))
    check_sides(None, None, tsv, encoding)
    return PairStream.rows(tsv, options["jsonl"], places, names, encoding)


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
