"""The options of `regard train` that change settings, derived from the settings of all tasks."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.cli.options import but
from regard.errors import ArgumentError, message
from regard.lazy_package import imported
from regard.runs.run_settings import RunSettings
from regard.tasks.task_table import SETTINGS
from regard.training.command_options import DATA, LOGS, MODEL, RUN, TRAINING, CommandOption
from regard.training.settings import section_of

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

PANELS = (DATA, MODEL, TRAINING, RUN, LOGS)
"""The order of the headings in the help of `regard train`."""

TRAINING_MACHINE = (
    but("device", panel=RUN),
    but("threads", panel=RUN, shown_default="the fastest on this machine, measured before training"),
)
"""The options of commands that train, for the device and the CPU threads."""

EXCLUSIVE = (
    ("minutes", "steps", "epochs"),
    ("batch_tokens", "batch_size"),
    ("seed", "seeds"),
    ("minutes", "seeds"),
)
"""Groups of options that exclude each other: at most one option of a group may be used."""

METAVARS = {int: "INT", float: "FLOAT", str: "NAME", list[str]: "FILE"}
"""Type of a setting -> the name of its value in the help, unless the option has another one."""


@dataclass(frozen=True)
class TrainOption:
    """An option of `regard train`.

    option: its declaration, with the type and the default of the setting.
    settings: the settings that the option sets, such as "training.steps". A task need not have all of them.
    """

    option: CommandOption
    settings: tuple[str, ...]


@functools.cache
def train_options() -> dict[str, TrainOption]:
    """Return the options that the settings of all tasks declare, by the name of their parameter.

    >>> train_options()["vocab_size"].settings
    ('data.source_vocab_size', 'data.target_vocab_size', 'data.vocab_size')
    >>> train_options()["label_smoothing"].option.shown_default
    '0.1; 0 for language, classification, captioning'
    """
    tasks = {name: imported(place.replace(":", ".")) for name, place in SETTINGS.items()}
    options: dict[str, CommandOption] = {}
    settings: dict[str, dict[str, None]] = {}
    kinds: list[type[BaseModel]] = [RunSettings, *tasks.values()]
    for kind in kinds:
        for name, option in _declared(kind):
            options.setdefault(option.parameter, option)
            settings.setdefault(option.parameter, {})[name] = None
    whole = {
        name: TrainOption(_with_default(option, settings[name], tasks), tuple(settings[name]))
        for name, option in options.items()
    }
    return dict(sorted(whole.items(), key=lambda item: PANELS.index(item[1].option.panel)))


def _declared(kind: type[BaseModel], place: str = "") -> Iterator[tuple[str, CommandOption]]:
    """Yield the name of each setting that declares an option, and the option with the type of the setting.

    place: the section, such as "training.", before the names.
    """
    declared = [(each.parameter, each, each.kind or str) for each in getattr(kind, "command_options", ())]
    for name, field in kind.model_fields.items():
        for option in (each for each in field.metadata if isinstance(each, CommandOption)):
            declared.append((name, option, option.kind or (str if option.parse else _type(field.annotation))))
    section = place.partition(".")[0]
    for name, option, value in declared:
        yield (
            f"{place}{name}",
            replace(
                option,
                kind=value,
                help=option.help or _text(kind, name),
                metavar=option.metavar or METAVARS.get(value, ""),
                panel=option.panel or (section.capitalize() if section else RUN),
            ),
        )
    for name in kind.model_fields:
        section_type = section_of(kind, [name])
        if section_type is not kind:
            yield from _declared(section_type, f"{place}{name}.")


def _text(kind: type[BaseModel], name: str) -> str:
    """Return what the docstring of a class says about a field, as a sentence.

    >>> _text(RunSettings, "seed")
    'Random seed.'
    """
    lines = iter(inspect.cleandoc(kind.__doc__ or "").splitlines())
    first = next((line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")), "")
    rest = itertools.takewhile(lambda line: line.startswith(" "), lines)
    return " ".join([first[:1].upper() + first[1:], *map(str.strip, rest)])


def _type(annotation: Any) -> Any:
    """Return the type of the values of a setting: its annotation without None, bounds and literals."""
    parts, origin = get_args(annotation), get_origin(annotation)
    if origin is Literal:
        return type(parts[0])
    return _type(parts[0]) if origin in (Annotated, Union, UnionType) else annotation


def _with_default(
    option: CommandOption, settings: Mapping[str, None], tasks: Mapping[str, type[BaseModel]]
) -> CommandOption:
    """Return an option with the default value of its setting, or with a text of the defaults of all tasks."""
    if option.shown_default or option.default is not None:
        return option
    values: dict[Any, list[str]] = {}
    for task, kind in tasks.items():
        for field in filter(None, (_field(kind, name) for name in settings)):
            values.setdefault(None if field.is_required() else field.default, []).append(task)
    if len(values) == 1:
        return replace(option, default=next(iter(values)))
    texts = [
        f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None
    ]
    for index, names in enumerate(names for value, names in values.items() if value is not None):
        if next(iter(SETTINGS)) not in names:
            texts[index] += f" for {', '.join(names)}"
    return replace(option, shown_default="; ".join(texts))


def _field(kind: type[BaseModel], name: str) -> FieldInfo | None:
    """Return the field of a setting, such as "training.steps"; None if a section has no such field."""
    field = None
    for key in name.split("."):
        if field is not None and field.default is None:
            return None  # the section is optional
        field = kind.model_fields.get(key)
        if field is None:
            return None
        kind = section_of(kind, [key])
    return field


def setting_options(*names: str) -> Iterator[CommandOption]:
    """Yield options of train_options(). Their values are None unless they are on the command line.

    names: the names of the parameters; by default, all options.
    """
    for name in names or train_options():
        yield replace(train_options()[name].option, given=True)


def settings_of(options: Mapping[str, Any], task: type[RunTask]) -> dict[str, Any]:
    """Convert options of `regard train` to nested settings of a task. Options that are None are skipped.

    Raises ArgumentError for an option whose setting the task does not have.

    >>> from regard.tasks.task_table import find_task
    >>> task = find_task("translation")
    >>> settings_of({"columns": "2,1", "vocab_size": 8000, "seed": 1, "width": None, "resume": True}, task)
    {'data': {'columns': [2, 1], 'source_vocab_size': 8000, 'target_vocab_size': 8000}, 'seed': 1}
    """
    own, data = task.settings_type.data_options(options)
    settings: dict[str, Any] = {"data": data} if data else {}
    for parameter, each in train_options().items():
        value = options.get(parameter)
        if value is None or parameter in own:
            continue
        names = [name for name in each.settings if _has_setting(task.settings_type, name)]
        if not names:
            raise _unknown_option(parameter, each.settings, task)
        value = str(value) if isinstance(value, Path) else value
        value = each.option.parse(value) if each.option.parse else value
        for name in names:
            *sections, last = name.split(".")
            place = settings
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
    return settings


def _has_setting(kind: Any, name: str) -> bool:
    """Return whether a task has a setting of this name, such as "training.steps".

    The result is also True if the section, such as "training", accepts any name.

    kind: the class of all settings of the task.
    """
    *sections, last = name.split(".")
    for section in sections:
        if section not in kind.model_fields:
            return False
        kind = kind.model_fields[section].annotation
        if not hasattr(kind, "model_fields"):  # e.g. EstimatorSettings | None; checked later
            return True
    return last in kind.model_fields or kind.model_config.get("extra") == "allow"


def _unknown_option(parameter: str, names: Sequence[str], task: type[RunTask]) -> ArgumentError:
    """Return the error for an option that a task does not have. Its hint lists the task's data options."""
    own, _ = task.settings_type.data_options({})
    data = [
        _spelled(other)
        for other, each in train_options().items()
        if each.settings[0].startswith("data.")
        and (other in own or any(_has_setting(task.settings_type, name) for name in each.settings))
    ]
    label = task.settings_type.model_fields["task"].default
    label = label if isinstance(label, str) else task.__name__
    problem = f"the task {label} has no setting {' or '.join(names)}"
    hint = f"its options for data are {', '.join(data)}" if names[0].startswith("data.") and data else ""
    return ArgumentError(message(_spelled(parameter), problem, hint=hint))


def _spelled(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def check_exclusive(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError if two options that exclude each other are used (see EXCLUSIVE)."""
    for names in EXCLUSIVE:
        both = [_spelled(name) for name in names if options[name] is not None]
        if len(both) > 1:
            problem = f"{' and '.join(both)} cannot be combined"
            hint = ""
            if names == ("minutes", "seeds"):
                hint = "set the length of a run with several seeds by --steps or --epochs"
            expected = f"only one of {', '.join(both)}"
            raise ArgumentError(message("regard train", problem, expected=expected, hint=hint))
