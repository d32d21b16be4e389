"""Add the options of all tasks to a command, and select the options of the task of a run.

A task declares its options in its own folder (RunTask.evaluate_options, RunTask.view_options). So commands
need no change when a task is added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.command_parameters import option_parameter, with_parameters
from regard.cli.run_options import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    MAX_SOURCE_LENGTH,
    BeamSize,
    GreedySearch,
    LengthPenalty,
    MaxLength,
    MaxSourceLength,
    TaskBatchTokens,
)
from regard.errors import ArgumentError, message
from regard.tasks.task_table import TASKS, find_task
from regard.training.command_options import CommandOption, option_parameters

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["SHARED", "check_given", "given_options", "given_parameters", "options_of", "with_task_options"]

SHARED: dict[str, tuple[Any, Any]] = {
    "beam_size": (BeamSize, BEAM_SIZE),
    "length_penalty": (LengthPenalty, LENGTH_PENALTY),
    "greedy": (GreedySearch, False),
    "max_length": (MaxLength, None),
    "max_source_length": (MaxSourceLength, MAX_SOURCE_LENGTH),
    "batch_tokens": (TaskBatchTokens, None),
}
"""Options that several commands share. Parameter name -> (type annotation, default value)."""


def with_task_options(attribute: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of all tasks to a command.

    attribute: the attribute of RunTask with the options: "evaluate_options" or "view_options".
    """

    options = (each for task in map(find_task, TASKS) for each in getattr(task, attribute))
    declared: dict[str, inspect.Parameter] = {}
    for parameter in map(_parameter, options):
        declared.setdefault(parameter.name, parameter)
    return with_parameters(declared.values())


def _parameter(option: CommandOption | str) -> inspect.Parameter:
    """Return the function parameter for an option that a task declares.

    option: the declaration in the task. A str is a key of SHARED, or the name of a parameter of the command
        itself, such as text.
    """
    if isinstance(option, CommandOption):
        return option_parameter(option)
    annotation, default = SHARED.get(option, (Any, None))
    return inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def options_of(task: type[RunTask], attribute: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict from the options of one task to their values, such as {"test_file": None}.

    If the task is not part of Regard, the options that only this task has cannot be set on the command line.
    They have their default values.

    attribute: the attribute of RunTask with the options: "evaluate_options" or "view_options".
    options: the values of the options of all tasks.
    """
    declared: tuple[CommandOption | str, ...] = getattr(task, attribute)
    defaults = {each.parameter: each.default for each in declared if isinstance(each, CommandOption)}
    return {name: options.get(name, defaults.get(name)) for name in option_parameters(declared)}


def check_given(context: typer.Context, task: type[RunTask], attribute: str, hint: str = "") -> None:
    """Raise ArgumentError if the command line has an option that only other tasks have.

    attribute: the attribute of RunTask with the options: "evaluate_options" or "view_options".
    hint: the hint of the error message; by default, it names the tasks that have the option.
    """
    accepted = option_parameters(getattr(task, attribute))
    for name, option in given_options(context, attribute).items():
        if name not in accepted:
            tasks = {each: option_parameters(getattr(find_task(each), attribute)) for each in TASKS}
            others = " or ".join(each for each, names in tasks.items() if name in names)
            from regard.runs.run_task import task_name

            problem = f"runs of the task {task_name(task)} have no such option"
            hint = hint or f"it is an option for runs of the task {others}"
            raise ArgumentError(message(option, problem, hint=hint))


def given_options(context: typer.Context, attribute: str) -> dict[str, str]:
    """Return the task-specific options that the user gave on the command line: parameter name -> option.

    For example, {"test_file": "--test-file"}.

    attribute: the attribute of RunTask that lists these options: "evaluate_options" or "view_options".
    """
    names = {name for each in TASKS for name in option_parameters(getattr(find_task(each), attribute))}
    return given_parameters(context, names)


def given_parameters(context: typer.Context, names: Collection[str]) -> dict[str, str]:
    """Return the parameters in `names` that are set on the command line: parameter name -> option."""
    return {
        str(each.name): each.opts[0]
        for each in context.command.params
        if each.name in names and _is_given(context, str(each.name))
    }


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
