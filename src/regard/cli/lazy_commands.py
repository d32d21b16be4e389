"""Command classes: modules are imported on use, so that help and version are printed without torch."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from functools import cached_property
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from regard.cli.option_names import PEER_COMMANDS
from regard.errors import UnknownName

__all__ = ["MARKUP", "Command", "CommandGroup", "LazyCommand"]

MARKUP: Literal["markdown"] = "markdown"
"""The markup of docstrings in the help."""


class Command(TyperCommand):
    """A command whose help has no Python types: <bool> for a flag, <path> for an argument called RUN."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, with the types to print."""
        return [_plain(each) for each in super().get_params(ctx)]


class CommandGroup(TyperGroup):
    """A group of commands; an unknown command raises UnknownName, which suggests a similar one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, with the types to print."""
        return [_plain(each) for each in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        peer = PEER_COMMANDS.get(name, "")
        raise UnknownName("command", name, self.commands, guess=peer if peer in self.commands else "")


def _plain(parameter: Any) -> Any:
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None
    elif parameter.is_flag and parameter.metavar is None:
        parameter.metavar = ""
    return parameter


class LazyCommand(TyperCommand):
    """The command of the module regard.cli.NAME, which has a function or a Typer app called NAME.

    Its help is read from the source text; the module is imported when the arguments are parsed.
    """

    def __init__(self, name: str):
        super().__init__(name, help=_help(f"{__package__}.{name}", name), rich_markup_mode=MARKUP)

    @cached_property
    def loaded(self) -> Any:
        """The actual command, imported on first use."""
        name = str(self.name)
        function = getattr(importlib.import_module(f"{__package__}.{name}"), name)
        if isinstance(function, typer.Typer):
            return typer.main.get_group(function)
        app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        app.command(name, cls=Command)(function)
        return typer.main.get_command(app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments with the actual command, which the context then runs."""
        return self.loaded.make_context(info_name, args, parent=parent, **extra)


def _help(module: str, name: str) -> str:
    """Return the docstring of a command (a function or an app callback) from the source of its module."""
    spec = importlib.util.find_spec(module)
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(module)
    if not source:  # installed without its source
        command: Any = getattr(importlib.import_module(module), name)
        command = getattr(command, "registered_callback", command)
        command = getattr(command, "callback", command)
        return inspect.getdoc(command) or ""
    functions = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)]
    decorated = [each for each in functions if f"{name}.callback" in map(_decorator, each.decorator_list)]
    named = [each for each in functions if each.name == name]
    return next((ast.get_docstring(each) or "" for each in (*decorated, *named)), "")


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)
