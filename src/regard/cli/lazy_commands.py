"""Command classes that import a module only when its command is used. So --help does not import torch."""

from __future__ import annotations

import ast
import functools
import importlib
import shutil
from importlib import resources
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from regard.cli.output_files import check_outputs
from regard.cli.usage_errors import (
    PEER_COMMANDS,
    WITHOUT_COMMAND,
    check_order,
    check_values,
    listed_name,
    unexpected_arguments,
)
from regard.errors import UnknownName
from regard.runs.memory_limit import check_memory_limit

__all__ = ["MARKUP", "Command", "CommandGroup", "LazyCommand"]

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
