"""The command line: one file per command; main() prints every error as a message without a traceback.

The module of a command is imported only when that command is run. So `regard --help` and `regard --version`
do not import torch, and Ctrl-C during the import of torch exits without a traceback.
"""

from __future__ import annotations

import ast
import errno
import functools
import importlib
import importlib.metadata
import os
import shutil
import sys
import time
import warnings
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from regard.cli.usage_errors import (
    PEER_COMMANDS,
    WITHOUT_COMMAND,
    check_order,
    check_outputs,
    check_values,
    listed_name,
    setting_option,
    unexpected_arguments,
    usage_error,
)
from regard.errors import LostProcess, Message, RegardError, RegardWarning, UnknownName, printable
from regard.runs.devices import check_memory_limit, memory_limit_hint

__all__ = ["COMMANDS", "MARKUP", "Command", "CommandGroup", "app", "main"]

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
    "export": TOOLS,
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


MARKUP: Literal["markdown"] = "markdown"
"""The markup language of docstrings: Typer renders it in the help."""

MOST_USED = {
    "train": (
        "--output",
        "--source",
        "--target",
        "--tsv",
        "--train-file",
        "--built-in",
        "--task",
        "--model",
        "--minutes",
        "--resume",
    ),
}
"""Command -> the options that its help lists first, in this order, below the heading "Most used"."""


WITHOUT_TORCH = ("cache", "data")
"""The commands that do not import torch. Other commands check the memory limit before they are imported."""


class Command(TyperCommand):
    """A command whose help does not show Python types, such as <bool> after a flag or <path> after RUN."""

    allow_extra_args = True  # parse_args() raises an error for them

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments in the order of the help, without Python types.

        Options of MOST_USED are first. --help is last if all other options are below headings.
        """
        first = MOST_USED.get(str(self.name), ())
        ranks = {name: rank for rank, name in enumerate(first)}
        parameters = sorted(
            map(_plain, super().get_params(ctx)), key=lambda each: ranks.get(each.opts[0], len(first))
        )
        options = [each for each in parameters if each.param_type_name == "option"]
        for option in options:
            if option.opts[0] in ranks:
                option.rich_help_panel = "Most used"
        *others, last = options  # --help
        if others and all(each.rich_help_panel for each in others):
            last.rich_help_panel = "Help"
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with columns that fit the terminal."""
        _fit_columns()
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the name of the command. Raise ArgumentError if a word is not expected, or
        if the command would overwrite one of its input files.
        """
        if not ctx.resilient_parsing:  # completion parses unfinished commands
            check_values(ctx, args)
        words = list(args)  # super().parse_args() removes words from args
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise unexpected_arguments(ctx, rest)
        if not ctx.resilient_parsing:
            check_order(ctx, words)
            check_outputs(ctx)
        return rest


class CommandGroup(TyperGroup):
    """A group of commands. `help COMMAND` is `COMMAND --help`.

    An unknown command raises UnknownName, which suggests a similar command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the name of the group."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options without Python types, so that the help does not show the types."""
        return [_plain(each) for each in super().get_params(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with columns that fit the terminal."""
        _fit_columns()
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command whose name is args[0], and return the result of the base class for this name.

        Raise UnknownName if there is no such command.
        """
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        peer = name.replace("_", "-")
        if "train" in self.commands and (answer := WITHOUT_COMMAND.get(peer)):
            raise UnknownName("command", name, (), answer=answer)
        guess = PEER_COMMANDS.get(peer, "")
        raise UnknownName("command", name, self.commands, guess=guess if guess in self.commands else "")


def _fit_columns() -> None:
    """Set the layout of Typer's help so that no word is truncated on a terminal of 60 columns."""
    from typer import rich_utils  # imports parts of rich that only the help needs

    narrow = shutil.get_terminal_size().columns < 80
    padding: Any = (0, 1, 0, 0) if narrow else (0, 1)  # top, right, bottom, left; or vertical, horizontal
    rich_utils.STYLE_OPTIONS_TABLE_PADDING = padding
    rich_utils.RANGE_STRING = "" if narrow else " [{}]"  # the range of a number, after INT


def _plain(parameter: Any) -> Any:
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None
    elif parameter.is_flag and parameter.metavar is None:
        parameter.metavar = ""
    return parameter


class LazyCommand(TyperCommand):
    """A command whose module is imported only when the command is used, not for the list of commands.

    The command NAME is the function, or the Typer app, called NAME in the module regard.cli.NAME. Its line in
    the list of commands is read from the source text of the module. The module is imported when the
    arguments of the command are parsed.

    name: the name of the command.
    group: the heading below which the help lists the command.
    """

    def __init__(self, name: str, group: str = ""):
        super().__init__(name, rich_help_panel=group or None, rich_markup_mode=MARKUP)

    @property
    def help(self) -> str:
        """The docstring of the function NAME, or of the callback about(), in the source of the module."""
        source = resources.files(__package__).joinpath(f"{self.name}.py").read_text(encoding="utf-8")
        functions = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)]
        texts = (ast.get_docstring(each) for each in functions if each.name in (self.name, "about"))
        return next(texts, None) or ""

    @help.setter
    def help(self, text: object) -> None:
        """Ignore the text: the base class sets None."""

    @property
    def loaded(self) -> Any:
        """The command with all its options. Its module is imported on first use."""
        return _load(str(self.name))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the module, parse the arguments with its command, and return the context of that command."""
        if self.name not in WITHOUT_TORCH:
            check_memory_limit()
        return self.loaded.make_context(info_name, args, parent=parent, **extra)


@functools.cache
def _load(name: str) -> Any:
    """Import the module of a command and return the command, which is built once per process."""
    function = getattr(importlib.import_module(f"{__package__}.{name}"), name)
    if isinstance(function, typer.Typer):
        return typer.main.get_group(function)
    app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    names = {"token_normalize_func": listed_name}
    app.command(name, cls=Command, context_settings=names)(function)
    return typer.main.get_command(app)


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
