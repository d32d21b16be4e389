"""The command line: one file per command; main() prints every error as a message without a traceback.

The module of a command is imported only when that command is run. So `regard --help` and `regard --version`
do not import torch, and Ctrl-C during the import of torch exits without a traceback.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
import time
import warnings
from functools import partial
from typing import Annotated, Any

import typer

from regard.cli.lazy_commands import MARKUP, CommandGroup, LazyCommand
from regard.cli.usage_errors import listed_name, setting_option, usage_error
from regard.errors import LostProcess, Message, RegardError, RegardWarning, printable
from regard.runs.memory_limit import memory_limit_hint

__all__ = ["COMMANDS", "app", "main"]

USE, SEE, DATA, TOOLS = "Train and use", "See and test", "Data", "Tools"

COMMANDS = {
    "demo": USE,
    "train": USE,
    "translate": USE,
    "generate": USE,
    "classify": USE,
    "caption": USE,
    "ask": USE,
    "solve": USE,
    "tour": SEE,
    "view": SEE,
    "align": SEE,
    "intervene": SEE,
    "evaluate": SEE,
    "score": SEE,
    "compare": SEE,
    "data": DATA,
    "show": TOOLS,
    "average": TOOLS,
    "backends": TOOLS,
    "doctor": TOOLS,
    "cache": TOOLS,
}
"""Command -> its group in the help. To add a command, write NAME() in NAME.py, and add a line here."""


UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Error numbers (errno) that the operating system returns if standard output cannot be written: the disk is
full or broken, or the stream was closed before the command started."""


CLOSED_PIPE = 128 + 13
"""Exit status if the reader of standard output has exited, as in regard ... | head -1. It is that of other
commands, which the signal SIGPIPE (13) ends."""


OTHER_PROCESSES = 15.0
"""Seconds that other processes of torchrun wait before they print an error; see _wait_for_first_process()."""


class _Commands(CommandGroup):
    """All commands of `regard`. The module of a command is imported only when the command is used."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = {name: LazyCommand(name, group) for name, group in COMMANDS.items()}

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Ctrl-C raises _Interrupted, because the parser would catch KeyboardInterrupt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None


class _Interrupted(Exception):
    """Exception: the user pressed Ctrl-C while a command was running."""


app = typer.Typer(
    name="regard",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": listed_name,
    },
)


def _print_version(requested: bool) -> None:
    if not requested:
        return
    try:
        typer.echo(f"regard {importlib.metadata.version('regard')}")
    except importlib.metadata.PackageNotFoundError:
        typer.echo("regard (not installed; running from source)")
    raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train translators, language models, classifiers, captioners and memory networks; see their attention.

    Examples:

    * `regard demo` trains a translator in two minutes and draws its attention

    * `regard train --source a.ko --target a.en --minutes 5 --output runs/x` trains a translator on your files

    * `regard translate runs/x --text "나는 고양이로소이다" --draw` translates and draws the attention

    * `regard view runs/x --text "나는 고양이로소이다" --output look.html` writes a page with every view

    * `regard tour` draws every attention mechanism in the terminal

    * `regard doctor` checks the installation

    * `regard help train` lists the options of a command, with examples
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for success, 2 for wrong arguments or data, 1 for other errors.

    Ctrl-C exits with 130, and a closed pipe with 141 (CLOSED_PIPE).
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # print ? for characters that the terminal cannot encode
    original, warnings.formatwarning = warnings.formatwarning, _warning_text
    try:
        sys.exit(_flushed(_status(arguments)))
    except MemoryError as error:  # raised by _status() while it handled another error
        sys.exit(_print_error("\n".join(filter(None, ("MemoryError", memory_limit_hint(error)))), 1))
    finally:
        warnings.formatwarning = original


def _warning_text(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return the text to print for a warning: for a RegardWarning, without a place in the source code."""
    if issubclass(category, RegardWarning):
        text = message.args[0] if isinstance(message, Warning) and message.args else message
        if isinstance(text, Message):
            text = text.spelled(setting_option)
        return f"regard: warning: {printable(str(text), kept=chr(10))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _flushed(status: int) -> int:
    """Flush standard output. Return `status`, the exit status, or 1 if standard output cannot be written.

    Python flushes at exit too, but an error at exit would be printed as a traceback.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return status or CLOSED_PIPE
    except OSError as error:
        _drop_output()
        return status or _print_error(f"standard output: cannot be written: {error.strerror or error}", 1)
    return status


def _drop_output() -> None:
    """Redirect standard output to the null device, so that Python does not fail when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(arguments: list[str] | None) -> int:
    try:
        status = app(arguments, prog_name="regard", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, typer.Abort, _Interrupted):
        return _print_error("interrupted", 130)
    except RegardError as error:
        _wait_for_first_process(error)
        return _print_error(error.message.spelled(partial(setting_option, arguments=arguments)), 2)
    except BrokenPipeError:  # e.g. regard ... | head: head has exited
        _drop_output()
        return CLOSED_PIPE
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # rich raises SystemExit for a broken pipe
            raise
        _drop_output()
        return CLOSED_PIPE
    except Exception as error:
        _wait_for_first_process(error)
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # an error of Typer
            if text := usage_error(error):
                return _print_error(text, int(error.exit_code))
            error.show()
            return int(error.exit_code)
        if os.environ.get("REGARD_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _print_error(f"{_printable(error.filename)}: {error.strerror or error}", 2)
        if isinstance(error, OSError) and error.errno in UNWRITABLE:  # no file name means standard output
            _drop_output()
            return _print_error(f"standard output: cannot be written: {error.strerror}", 1)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = "hint: to see the traceback, set the environment variable REGARD_TRACEBACK=1"
        return _print_error("\n".join(filter(None, (text, memory_limit_hint(error), hint))), 1)


def _printable(path: Any) -> str:
    """Return the path of a file as text that can be printed: control characters are replaced by �."""
    text = os.fsencode(path).decode("utf-8", "replace") if isinstance(path, str | bytes) else str(path)
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _wait_for_first_process(error: Exception) -> None:
    """Wait before an error of training with torchrun is printed, except in the first process.

    All processes usually have the same error. When the first process has printed it, torchrun ends the
    others, so the error is printed once. If another process has ended, this may have been the first, so the
    second process prints the error at once, too.
    """
    rank = os.environ.get("RANK", "0")
    if "WORLD_SIZE" in os.environ and rank != "0" and not (isinstance(error, LostProcess) and rank == "1"):
        time.sleep(OTHER_PROCESSES)


def _print_error(text: str, status: int) -> int:
    prefix = "" if text.startswith(("regard ", "regard:")) else "regard: "
    print(f"{prefix}{printable(text, kept=chr(10))}", file=sys.stderr)
    return status
