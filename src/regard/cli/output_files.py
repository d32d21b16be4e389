"""check_outputs(): refuse to write an output file over an input file, before anything is read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, message, shown

__all__ = ["check_apart", "check_outputs"]

OUTPUTS = ("--output", "--page", "--alignments", "--coco")
"""The options that name a file to write."""


def check_outputs(context: Any) -> None:
    """Raise ArgumentError if an output file of a command is one of its input files, or another output file.

    Two names are the same file if they lead to the same file on the disk, also through links.

    context: the context of the command, with the values of all parameters.
    """
    outputs = dict[str, Path]()
    inputs = list[tuple[str, str]]()
    for parameter in context.command.params:
        value, option = context.params.get(str(parameter.name)), parameter.opts[0]
        if option in OUTPUTS and str(parameter.metavar).startswith("FILE"):
            if value is not None and str(value) != "-":
                outputs[option] = Path(value)
        elif parameter.metavar != "TEXT":
            inputs += [(option, path) for path in _paths(value)]
    for option, output in outputs.items():
        for other, path in inputs:
            source = f"{other} {shown(path)}" if other.startswith("-") else shown(path)
            check_apart(option, output, [path], source)
        if _is_standard_input(output):
            raise _overwritten(option, output, "standard input")
    _check_different(outputs)


def check_apart(option: str, output: Path, inputs: Iterable[str | Path], source: str = "") -> None:
    """Raise ArgumentError if an output file is one of the input files.

    option: the option with the output file, for the error message.
    source: the input file, for the error message; by default its name.
    """
    for path in inputs:
        # writing() writes to output.part first
        for written in (output, output.with_name(f"{output.name}.part") if output.name else output):
            if _same_file(written, path):
                raise _overwritten(option, output, source or shown(path))


def _check_different(outputs: dict[str, Path]) -> None:
    """Raise ArgumentError if two options name the same output file."""
    written = dict[str, str]()
    for option, output in outputs.items():
        if output.exists() and not output.is_file():  # a device such as /dev/null, or a pipe
            continue
        other = written.setdefault(os.path.realpath(output), option)
        if other != option:
            problem = f"{other} names the same file"
            raise ArgumentError(message(f"{option} {shown(output)}", problem, expected="two different files"))


def _overwritten(option: str, output: Path, source: str) -> ArgumentError:
    problem = f"the output would overwrite an input file: {source}"
    return ArgumentError(message(f"{option} {shown(output)}", problem, hint="choose another output file"))


def _paths(value: Any) -> Iterator[str]:
    """Yield all texts and paths in the value of a parameter, which may be a list."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _paths(each)


def _same_file(output: Path, path: str | Path) -> bool:
    try:
        return os.path.isfile(path) and os.path.samefile(output, path)
    except (OSError, ValueError):  # there is no such file, or the text cannot be a file name
        return False


def _is_standard_input(output: Path) -> bool:
    """Return whether standard input is read from the file `output`, as in `regard ... < FILE`."""
    try:
        opened, found = os.fstat(sys.stdin.fileno()), os.stat(output)
    except (AttributeError, OSError, ValueError):  # no standard input, or no such file
        return False
    return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, found)
