"""Convert declarations of options (CommandOption) to parameters of a command of Typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from regard.cli.bounds import none_if_default
from regard.training.command_options import DATA, LOGS, MODEL, RUN, TRAINING, CommandOption

__all__ = ["PANELS", "option_parameter", "typer_option", "with_parameters"]

PANELS = (DATA, MODEL, TRAINING, RUN, LOGS)
"""The order of the headings in the help of `regard train`."""

Result = TypeVar("Result")


def typer_option(option: CommandOption, **more: Any) -> Any:
    """Return the option of Typer for a declaration.

    more: further or other arguments of typer.Option().
    """
    arguments: dict[str, Any] = {
        "metavar": option.metavar or None,
        "help": option.help,
        "rich_help_panel": option.panel or None,
        "show_default": option.shown_default or True,
        "min": option.least,
        "max": option.most,
    }
    return typer.Option(option.name, **(arguments | more))


def option_parameter(option: CommandOption, only_given: bool = False) -> inspect.Parameter:
    """Return the parameter of a function for a declared option.

    only_given: whether the value is None unless the option is on the command line. The help shows the default
        all the same.
    """
    kind: Any = option.kind or str
    if only_given or option.default is None:
        kind = kind | None
    annotation = Annotated[
        kind, typer_option(option, **({"callback": none_if_default} if only_given else {}))
    ]
    return inspect.Parameter(
        option.parameter, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation
    )


def with_parameters(
    parameters: Iterable[inspect.Parameter],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that adds parameters to the signature of a command with **options.

    They are listed before the keyword-only parameters of the command. A parameter that the command itself has
    is not added.
    """
    added = list(parameters)

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        own = inspect.signature(function, eval_str=True).parameters
        named = {name: each for name, each in own.items() if each.kind is not each.VAR_KEYWORD}
        first = [each for each in named.values() if each.kind is not each.KEYWORD_ONLY]
        last = [each for each in named.values() if each.kind is each.KEYWORD_ONLY]
        between = [each for each in added if each.name not in named]
        signature = inspect.Signature([*first, *between, *last], return_annotation=None)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return function

    return decorate
