"""Errors of the command line's grammar: an option without its value, an argument that no command expects."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.cli.option_names import TMX, listed_name, unknown_option
from regard.errors import ArgumentError, message, printable, shell_word, shown

__all__ = [
    "FORMATS",
    "check_order",
    "check_values",
    "file_option",
    "other_usage_error",
    "unexpected_arguments",
]

LONG_NAME = re.compile(r"-[A-Za-z][\w-]+")
"""A name of several letters after one hyphen, as the options of OpenNMT-py have it."""

FORMATS = {".tsv": "--tsv", ".csv": "--csv", ".jsonl": "--jsonl", ".json": "--jsonl", ".parquet": "--parquet"}
"""Ending of the name of a file -> the option for such files."""

SETTINGS = (".toml", ".yaml", ".yml")
"""Endings of the names of files of settings, in Regard (TOML) and in other toolkits (YAML)."""


def check_values(context: Any, arguments: Sequence[str]) -> None:
    """Raise ArgumentError if an option has no value, if a flag such as --resume has one, or if a long option
    has one hyphen, such as -model. (Typer would report an unknown option -m.)

    An option has no value if it is the last word, or if the next word is another option of the command: in
    `--source --target b.en`, --target is not the file of --source. --prompt=--target has the value --target.

    context: the context of the command.
    arguments: the words after the name of the command.
    """
    parameters = context.command.get_params(context)
    options = {name: each for each in parameters for name in (*each.opts, *each.secondary_opts)}
    normalize = context.token_normalize_func or str

    def option_of(word: str) -> Any:
        return options.get(word) or options.get(f"--{normalize(word[2:])}" if word.startswith("--") else word)

    words = iter(range(len(arguments)))
    for index in words:
        if (word := arguments[index]) == "--":
            return
        name, equals, value = word.partition("=")
        option = option_of(name) if name.startswith("-") else None
        if option is None and LONG_NAME.match(name):
            raise ArgumentError(unknown_option(context, name))
        if option is None or option.param_type_name != "option":
            continue
        if option.is_flag:
            if equals:
                raise _error(context, f"the option {name} takes no value", f"{name}, without ={value}")
        elif not equals:
            after = next(words, None)
            following = "" if after is None else arguments[after]
            if after is None or (following.startswith("--") and option_of(following) is not None):
                expected = f"{option.opts[0]} {option.metavar or 'VALUE'}"
                raise _error(context, f"the option {option.opts[0]} has no value", expected)


def check_order(context: Any, arguments: Sequence[str]) -> None:
    """Raise ArgumentError if the arguments RUN and FILES are swapped; the hint is the correct command.

    context: the context of the command, with the values of all parameters.
    arguments: the words after the name of the command.
    """
    run = context.params.get("run")
    if run is None or not os.path.isfile(run):
        return
    from regard.runs.run_folder import is_run  # imports pydantic

    folder = next((each for each in context.params.get("files") or () if is_run(Path(each))), None)
    if folder is None:
        return
    swapped = {str(run): folder, folder: str(run)}
    words = [swapped.get(os.path.normpath(each), swapped.get(each, each)) for each in arguments]
    hint = f"the run folder is first: {context.command_path} {' '.join(map(shell_word, words))}"
    raise ArgumentError(message(shown(str(run)), "this is a file, not a run folder", hint=hint))


def _error(context: Any, problem: str, expected: str) -> ArgumentError:
    hint = f"{context.command_path} --help lists the options"
    return ArgumentError(message(context.command_path, problem, expected=expected, hint=hint))


def file_option(name: str) -> str:
    """Return the option for files of sentence pairs with this ending; "" if there is none.

    >>> file_option("a.TSV.gz"), file_option("a.txt")
    ('--tsv', '')
    """
    option = FORMATS.get(Path(name.removesuffix(".gz")).suffix.lower(), "")
    return option and f"--{listed_name(option[2:])}"


def unexpected_arguments(context: Any, words: Sequence[str]) -> ArgumentError:
    """Return the error for words that are neither options nor arguments of the command.

    If the command has options for files, such as --source, the hint writes the command with them.
    """
    options = {name for each in context.command.get_params(context) for name in each.opts}
    call, first = context.command_path, printable(words[0])
    if not {"--source", "--target", "--tsv"} <= options:
        problem = f"unexpected argument{'s' * (len(words) > 1)} {printable(' '.join(words))}"
        hint = f"{call} --help lists the arguments and options"
        if {"--prompt", "--prompt-file"} <= options:
            option = "--prompt-file" if os.path.isfile(words[0]) else "--prompt"
            hint = f"{option} {shell_word(words[0])}"
        if {"--last", "--steps"} <= options:
            hint = f"{call} averages checkpoints of one run: --last INT, or --steps INT,INT,..."
        return ArgumentError(message(call, problem, hint=hint))
    for name in ("columns", "fields"):
        value = context.params.get(name)
        if value and len(words) == 1 and not Path(words[0]).suffix:
            names = shell_word(f"{value.rstrip(',')},{words[0]}")
            hint = f"separate the names by a comma, without a space: --{name} {names}"
            return ArgumentError(message(f"{call} {first}", "unexpected argument", hint=hint))
    suffix = Path(words[0].removesuffix(".gz")).suffix.lower()
    if "--recipe" in options and suffix in SETTINGS:
        hint = f"--recipe {shell_word(words[0])}"
        if suffix != ".toml":
            hint = "YAML is not read: write the settings to a TOML file, --recipe FILE.toml, or use options"
        problem = "a file of settings must follow an option"
        return ArgumentError(message(f"{call} {first}", problem, hint=hint))
    if suffix == ".tmx":
        return ArgumentError(message(f"{call} {first}", "TMX files cannot be read", hint=TMX))
    named = FORMATS.get(suffix)
    hint = f"{named} {shell_word(words[0])}" if named else "--source FILE --target FILE, or --tsv FILE"
    if len(words) == 2 and not named:
        hint = f"--source {shell_word(words[0])} --target {shell_word(words[1])}"
    problem = "a file name must follow an option that says what the file contains"
    return ArgumentError(message(f"{call} {first}", problem, hint=hint))


def other_usage_error(error: Any) -> str:
    """Return the message for an error of Typer that has no message of its own; "" if it prints the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    call = getattr(getattr(error, "ctx", None), "command_path", "regard")
    return message(call, error.format_message(), hint=f"{call} --help lists the arguments and options")
