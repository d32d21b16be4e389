"""The command line: one file per command, and one place that turns every error into a message.

A command's module is imported when the command is run, so that help and version are printed without torch,
and Ctrl-C while torch is imported ends as quietly as later.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regard.cli.lazy_commands import MARKUP, LazyCommand
from regard.errors import RegardError, printable

__all__ = ["COMMANDS", "app", "main"]

TODAY = {"at": "site", "gold": "alignment", "into": "out", "output": "out", "save": "out"}
"""Old names of options, which are still accepted, and their present names."""

COMMANDS = (
    "demo",
    "tour",
    "train",
    "translate",
    "score",
    "evaluate",
    "view",
    "align",
    "intervene",
    "average",
    "show",
    "backends",
    "doctor",
    "data",
)
"""The commands in the order of the help. To add one: its file, with a function of its name, and one line."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to a full or broken disk."""


class _Commands(TyperGroup):
    """The group of all commands, none of them imported yet."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = {name: LazyCommand(name) for name in COMMANDS}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; KeyboardInterrupt leaves as _Interrupted, which the parser passes on."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None


class _Interrupted(Exception):
    """Ctrl-C inside a command."""


app = typer.Typer(
    name="regard",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: TODAY.get(name, name),
    },
)


def _say_version(asked: bool) -> None:
    if not asked:
        return
    try:
        typer.echo(f"regard {importlib.metadata.version('regard')}")
    except importlib.metadata.PackageNotFoundError:
        typer.echo("regard (not installed; running from its source)")
    raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train translators with attention, translate, and see what each word attends to.

    Examples:

    * `regard demo` trains a translator in two minutes and draws its attention

    * `regard train --source a.ko --target a.en --minutes 5 --out runs/x` trains your own

    * `regard translate runs/x --text "나는 고양이로소이다" --draw` translates and draws the attention

    * `regard view runs/x "나는 고양이로소이다" --out look.html` writes a page with every view

    * `regard tour` draws every attention mechanism in the terminal

    * `regard data sample` shows sentences of the built-in corpus with their word alignments

    * `regard backends --why` lists which backend runs on this machine, and why not the others

    * `regard doctor` checks the installation
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for done, 2 for what cannot be done as asked, 1 for all else."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Korean shows ? rather than an error
    sys.exit(_flushed(_status(arguments)))


def _flushed(status: int) -> int:
    """The status, unless what was printed cannot be written: Python would find out only after the end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        return status or _say(f"standard output: cannot be written: {error.strerror or error}", 1)
    return status


def _drop_output() -> None:
    """Send what is left of standard output nowhere, so that no error is raised for it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(arguments: list[str] | None) -> int:
    try:
        found = app(arguments, prog_name="regard", standalone_mode=False)
        return found if isinstance(found, int) else 0
    except (KeyboardInterrupt, typer.Abort, _Interrupted):
        return _say("interrupted", 130)
    except RegardError as error:
        return _say(str(error), 2)
    except BrokenPipeError:  # whoever was reading has left, as head does
        _drop_output()
        return 1
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # the parser's own: a wrong option, say
            error.show()
            return int(error.exit_code)
        if os.environ.get("REGARD_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _say(f"{_printable(error.filename)}: {error.strerror or error}", 2)
        if isinstance(error, OSError) and error.errno in FULL:  # files are named: this is what was printed
            _drop_output()
            return _say(f"standard output: cannot be written: {error.strerror}", 1)
        shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _say(f"{shown}\nhint: REGARD_TRACEBACK=1 shows where it happened", 1)


def _printable(path: Any) -> str:
    """A path as text without control characters."""
    text = os.fsencode(path).decode("utf-8", "replace") if isinstance(path, str | bytes) else str(path)
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _say(text: str, status: int) -> int:
    print(f"regard: {printable(text, kept=chr(10))}", file=sys.stderr)
    return status
