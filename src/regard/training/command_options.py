"""CommandOption: an option of the command line, declared by a setting or by a task."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DATA, MODEL, TRAINING, RUN, LOGS = "Data", "Model", "Training", "Run", "Logs"
"""The headings of the help of `regard train`, in this order."""

CHOSEN = "chosen automatically"


@dataclass(frozen=True)
class CommandOption:
    """An option of the command line.

    An option of `regard train` is declared by the setting that it changes, as metadata of the field:
    `patience: Annotated[Whole | None, CommandOption("--patience")] = None`. Its help is the text about the
    field in the docstring of the class. Its type and default value are those of the field, and its bounds are
    checked with the settings. If several tasks have the setting, one of them declares the option. An option
    of `regard evaluate` or `regard view` is declared by a task, in its attribute evaluate_options or
    view_options.

    name: the name of the option with its hyphens, such as "--test-file". "--lowercase/--cased" is a flag that
        can be set to True or to False; "--yes -y" has a short name, too. An argument has no hyphens: "run".
    help: the help text of the option, one sentence. For a setting, "" is the text in the docstring.
    metavar: the name of the value in the help, such as FILE. "" for a flag. For a setting, "" is INT, FLOAT,
        NAME or FILE, depending on its type.
    kind: the type of the value: str, int, float, Path, bool for a flag, or list[str] for an option that may
        be repeated. None: str, or the type of the setting.
    default: the value if the option is not used.
    shown_default: the text that the help shows as default, if it differs from `default`.
    given: whether the value is None unless the option is on the command line. The help shows the default all
        the same.
    least, most: for a number, the smallest and the largest permitted value. For a setting, they need not be
        repeated here.
    panel: the heading below which the help lists the option. For a setting, "" is that of its section.
    check: a function that returns the value of the option, or raises ArgumentError.
    parse: a function that converts the value of the option, such as its text, to the value of the setting.

    >>> CommandOption("--test-file", "Text file.", "FILE").parameter
    'test_file'
    """

    name: str
    help: str = ""
    metavar: str = ""
    kind: Any = None
    default: Any = None
    shown_default: str = ""
    given: bool = False
    least: float | None = None
    most: float | None = None
    panel: str = ""
    check: Callable[[Any], Any] | None = None
    parse: Callable[[Any], Any] | None = None

    @property
    def parameter(self) -> str:
        """The key of this option in the dict `options` of RunTask.evaluate_run() and RunTask.view_run()."""
        name = re.split("[/ ]", self.name)[0].lstrip("-").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name


def flag(name: str, text: str, **more: Any) -> CommandOption:
    """Return an option without a value, which is False unless it is on the command line.

    more: further fields of CommandOption.
    """
    return CommandOption(name, text, kind=bool, default=False, **more)


def integer(
    name: str, text: str, least: float | None = None, most: float | None = None, **more: Any
) -> CommandOption:
    """Return an option for an integer from `least` to `most`. more: further fields of CommandOption."""
    return CommandOption(name, text, **{"metavar": "INT", "kind": int, **more}, least=least, most=most)


def number(
    name: str, text: str, least: float | None = None, most: float | None = None, **more: Any
) -> CommandOption:
    """Return an option for a number from `least` to `most`. more: further fields of CommandOption."""
    return integer(name, text, least, most, **{"metavar": "FLOAT", "kind": float, **more})


def several(name: str, text: str, metavar: str, **more: Any) -> CommandOption:
    """Return an argument with several values, or an option that may be repeated, as its help says."""
    text = f"{text} May be repeated." if name.startswith("-") else text
    return CommandOption(name, text, metavar, list[str], **more)


def option_parameters(options: Sequence[CommandOption | str]) -> tuple[str, ...]:
    """Return the keys of options in the dict `options` of RunTask.evaluate_run() and RunTask.view_run().

    options: a list of CommandOption and str. A str is an option that several commands share. The key is
        CommandOption.parameter, or the str itself.

    >>> option_parameters([CommandOption("--test-file", "Text file.", "FILE"), "beam_size"])
    ('test_file', 'beam_size')
    """
    return tuple(each if isinstance(each, str) else each.parameter for each in options)
