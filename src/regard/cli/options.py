"""The options of all commands: how they become parameters, and those that several commands share.

A command declares its options once, as a list in the order of its help, and receives their values:

    @command(RUN, "output", CommandOption("--count", "Number of sentences.", "INT", int, 3, least=1))
    def name(run: Path, **options: Any) -> None:

A str is the name of a shared option. This module does not import torch.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from regard.data.column_names import COLUMNS, FIELDS
from regard.errors import ArgumentError, message
from regard.tasks.file_options import ENCODING, SOURCE, TARGET
from regard.training.command_options import CommandOption, flag, integer, option_parameters, several

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

CORPUS = 10_000_000
"""Maximum number of sentences of the built-in corpus."""

COUNT = 100_000
"""Maximum number of sentences to print, and maximum number of checkpoints to average."""

LINES = 1_000_000
"""Largest value of the options --at-once, --sequences, --top-k and --erase."""

MOST_MINUTES = 1_000_000.0
PAIRS = 100_000_000
SEED = 2**63 - 1
TOKENS = 10_000_000
"""Maximum number of tokens in a batch, including padding."""

THREADS = max(256, os.cpu_count() or 1)
"""Maximum number of CPU threads: torch crashes if the system cannot start as many threads as requested."""

DEFAULT_COLUMNS = "1,2"
"""The value of --columns if the option is not set."""

REQUIRED = inspect.Parameter.empty
"""The default value of an argument or option that a command cannot be used without."""

MACHINE = "Checkpoint and device"

Declared = CommandOption | str
Result = TypeVar("Result")


def finite(value: float) -> float:
    """Return the number; raise an error for NaN and infinity, which the bounds of Typer do not reject.

    >>> finite(0.5)
    0.5
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def _threads(count: int) -> int:
    """Return the number of threads; print a warning if there are more threads than CPU cores.

    >>> _threads(1)
    1
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count > cores:
        typer.echo(
            f"--threads {count} is more than the {cores} CPU cores available: this is probably slow", err=True
        )
    return count


def batch_tokens(text: str, default: int | None, shown_default: str = "") -> CommandOption:
    """Return the option --batch-tokens.

    text: the help text.
    """
    return integer(
        "--batch-tokens", text, 1, TOKENS, default=default, shown_default=shown_default, panel=MACHINE
    )


RUN = CommandOption("run", "Run folder, written by regard train --output.", "RUN", Path, REQUIRED)
JSON = flag("--json", "Print JSON instead of a table.")

OPTIONS = {
    each.parameter: each
    for each in (
        CommandOption("--output", "Write to this file instead of standard output.", "FILE", Path),
        JSON,
        flag("--draw", "Draw the attention in the terminal."),
        CommandOption("--page", "Also write an HTML page with the attention.", "FILE.html", Path),
        replace(ENCODING, kind=str),
        CommandOption(
            "--checkpoint",
            "Checkpoint: best, latest, or the number of its step.",
            "NAME",
            default="best",
            panel=MACHINE,
        ),
        CommandOption(
            "--device",
            "Device: cpu, cuda (or gpu), mps, or auto (the fastest available).",
            "NAME",
            default="auto",
            panel=MACHINE,
        ),
        integer("--threads", "Number of CPU threads.", 1, THREADS, panel=MACHINE, check=_threads),
        integer("--seed", "Random seed.", 0, SEED, default=0),
        flag("--overwrite", "Overwrite existing files."),
        CommandOption("--source", SOURCE.help, "FILE", list[str]),
        CommandOption("--target", TARGET.help, "FILE", list[str]),
        several(
            "--tsv",
            "TSV or CSV file with sentence pairs, instead of --source and --target (see --columns).",
            "FILE",
        ),
        several(
            "--jsonl",
            "JSON lines, JSON or Parquet file with sentence pairs, instead of --source and --target (see "
            "--fields).",
            "FILE",
        ),
        CommandOption("--columns", COLUMNS, "A,B", default=DEFAULT_COLUMNS),
        CommandOption("--fields", FIELDS, "A,B", default="source,target"),
        CommandOption(
            "--choose",
            "What to do about a problem in the data, e.g. invalid=replace; or a limit, e.g. longest=200. "
            "May be repeated. regard data check --help lists all values.",
            "NAME=VALUE",
            list[str],
        ),
        CommandOption(
            "--task",
            "Task of the run, as package.module:Class, if it is not part of Regard.",
            "NAME",
        ),
        integer("--head", "Number of an attention head; the first is 0.", 0, 10_000),
        CommandOption(
            "--unit",
            "Unit to align: word, morpheme, character, or auto (morpheme or character if the run has such a "
            "tokenizer, else word).",
            "NAME",
            default="auto",
        ),
    )
}
"""Options that several commands share. Parameter name -> declaration."""

OF_RUN = ("checkpoint", "device", "threads")
"""The options of commands that load a run."""

PAIR_FILES: tuple[Declared, ...] = ("source", "target", "tsv", "jsonl", "columns", "fields", "encoding")
"""The options for files of sentence pairs."""


def but(name: str, text: str = "", **changes: Any) -> CommandOption:
    """Return a shared option with another help text, or with other changes."""
    shared = OPTIONS[name]
    return replace(shared, help=text or shared.help, **changes)


def under(panel: str, *options: Declared, **changes: Any) -> tuple[CommandOption, ...]:
    """Return options with this heading in the help, and with other changes."""
    declared = (OPTIONS[each] if isinstance(each, str) else each for each in options)
    return tuple(replace(each, panel=panel, **changes) for each in declared)


PAIR_LINES: tuple[Declared, ...] = (
    but("source", "File with one source sentence per line; - is standard input. May be repeated."),
    but(
        "target",
        "File with target sentences: line N is the translation of line N of --source; - is standard "
        "input. May be repeated.",
    ),
    *PAIR_FILES[2:],
)
"""The options for files of sentence pairs, of commands that can read them from standard input."""


def command(*options: Declared) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that gives a function the parameters of a command, in the order of its help.

    The function receives the values by name. Names are those of CommandOption.parameter.
    """
    added = list(parameters_of(options))

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        context = [each for each in own if each.annotation is typer.Context]
        signature = inspect.Signature([*context, *added], return_annotation=None)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return function

    return decorate


def parameters_of(options: Iterable[Declared]) -> Iterator[inspect.Parameter]:
    """Yield the parameter of a function for each declared argument and option."""
    for each in options:
        option = OPTIONS[each] if isinstance(each, str) else each
        kind: Any = option.kind or str
        if option.given or option.default is None:
            kind = kind | None
        yield inspect.Parameter(
            option.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=Annotated[kind, _typer_parameter(option)],
        )


def _typer_parameter(option: CommandOption) -> Any:
    def callback(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        if option.given and not _is_given(context, str(parameter.name), "DEFAULT"):
            return None
        return value if value is None or option.check is None else option.check(value)

    arguments: dict[str, Any] = {
        "metavar": option.metavar or None,
        "help": option.help,
        "rich_help_panel": option.panel or None,
        "show_default": option.shown_default or True,
        "min": option.least,
        "max": option.most,
        "callback": callback if option.given or option.check else None,
    }
    if option.name.startswith("-"):
        return typer.Option(*option.name.split(" "), **arguments)
    return typer.Argument(**arguments | {"show_default": False})


def options_of(
    context: typer.Context,
    task: type[RunTask],
    attribute: str,
    options: Mapping[str, Any],
    hint: str = "",
) -> dict[str, Any]:
    """Return a dict from the options of one task to their values, such as {"test_file": None}.

    Raise ArgumentError if the command line has an option that only other tasks have. If the task is not part
    of Regard, the options that only this task has cannot be set on the command line. They have their default
    values.

    attribute: the attribute of RunTask with the options: "evaluate_options" or "view_options".
    options: the values of the options of all tasks.
    hint: the hint of the error message; by default, it names the tasks that have the option.
    """
    from regard.runs.run_task import task_name
    from regard.tasks.task_table import TASKS, find_task

    declared: tuple[CommandOption | str, ...] = getattr(task, attribute)
    accepted = option_parameters(declared)
    for name, option in given_options(context, attribute).items():
        if name not in accepted:
            tasks = {each: option_parameters(getattr(find_task(each), attribute)) for each in TASKS}
            others = " or ".join(each for each, names in tasks.items() if name in names)
            problem = f"runs of the task {task_name(task)} have no such option"
            hint = hint or f"it is an option for runs of the task {others}"
            raise ArgumentError(message(option, problem, hint=hint))
    defaults = {each.parameter: each.default for each in declared if isinstance(each, CommandOption)}
    return {name: options.get(name, defaults.get(name)) for name in accepted}


def given_options(context: typer.Context, attribute: str) -> dict[str, str]:
    """Return the task-specific options that the user gave on the command line: parameter name -> option.

    For example, {"test_file": "--test-file"}.

    attribute: the attribute of RunTask that lists these options: "evaluate_options" or "view_options".
    """
    from regard.tasks.task_table import TASKS, find_task

    names = {name for each in TASKS for name in option_parameters(getattr(find_task(each), attribute))}
    return given_parameters(context, names)


def given_parameters(context: typer.Context, names: Collection[str]) -> dict[str, str]:
    """Return the parameters in `names` that are set on the command line: parameter name -> option."""
    return {
        str(each.name): each.opts[0]
        for each in context.command.params
        if each.name in names and _is_given(context, str(each.name))
    }


def _is_given(context: typer.Context, name: str, without: str = "") -> bool:
    """Return whether a parameter is on the command line; with "DEFAULT", whether it has not its default."""
    source = context.get_parameter_source(name)
    return source is not None and (source.name != without if without else source.name == "COMMANDLINE")
