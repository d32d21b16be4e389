"""Errors of the command line's grammar: an option without its value, an argument that no command expects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.cli.option_names import TMX
from regard.errors import ArgumentError, message, printable, shell_word

__all__ = ["FORMATS", "check_values", "other_usage_error", "unexpected_arguments"]

FORMATS = {".tsv": "--tsv", ".csv": "--csv", ".jsonl": "--jsonl", ".json": "--jsonl", ".parquet": "--parquet"}
"""Ending of the name of a file -> the option for such files."""


def check_values(context: Any, arguments: Sequence[str]) -> None:
    """Raise ArgumentError if an option has no value, or if a flag such as --resume has one.

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


def _error(context: Any, problem: str, expected: str) -> ArgumentError:
    hint = f"{context.command_path} --help lists the options"
    return ArgumentError(message(context.command_path, problem, expected=expected, hint=hint))


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
            option = "--prompt-file" if Path(words[0]).is_file() else "--prompt"
            hint = f"{option} {shell_word(words[0])}"
        return ArgumentError(message(call, problem, hint=hint))
    for name in ("columns", "fields"):
        value = context.params.get(name)
        if value and len(words) == 1 and not Path(words[0]).suffix:
            names = shell_word(f"{value.rstrip(',')},{words[0]}")
            hint = f"separate the names by a comma, without a space: --{name} {names}"
            return ArgumentError(message(f"{call} {first}", "unexpected argument", hint=hint))
    ending = Path(words[0].removesuffix(".gz")).suffix.lower()
    if ending == ".tmx":
        return ArgumentError(message(f"{call} {first}", "TMX files cannot be read", hint=TMX))
    named = FORMATS.get(ending)
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
