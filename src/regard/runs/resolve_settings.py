"""Check the settings of a run, read its data, and merge the settings with the settings of a resumed run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, DataError, message, shell_word, shown
from regard.runs.run_folder import check_settings, config_of, fingerprints_of
from regard.runs.run_settings import ModelSettings, check_seeds
from regard.runs.run_task import RunTask, smallest_model
from regard.runs.seed_folders import check_one_seed
from regard.runs.stored_runs import checked_settings
from regard.training.setting_names import named_tables
from regard.training.settings import build, differences, merged, without_alternatives

BASELINE = ("training.estimator.baseline.name", "training.estimator.baseline.hidden")
"""Settings that cannot change when a run is resumed, because the weights of the baseline depend on them."""


@dataclass(frozen=True, eq=False)
class ResolvedSettings:
    """The checked settings of a run, and its data.

    settings: all settings. Settings that are not set have their default values.
    data: the result of RunTask.read_data().
    incomplete: for a new run, only the settings that are set so far. RunTask.plan() chooses some of the other
        settings. None for a resumed run.
    notes: messages for the log about the settings that were chosen to suit the data.
    """

    settings: Any
    data: Any
    incomplete: dict[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether the run is new. False if it is resumed."""
        return self.incomplete is not None


def resolve_settings(
    task: type[RunTask], settings: Mapping[str, Any], resumed: Path | None = None, *, change: bool = False
) -> ResolvedSettings:
    """Check the settings of a run and read its data.

    settings: the settings of the user, as nested dicts like the sections of config.toml.
    resumed: the folder of the run to resume. None for a new run.
    change: whether the settings and data may differ from the settings and data at the start of the resumed
        run.
    """
    settings = _absolute(task, named_tables(settings))
    if task.settings_type.model_fields["task"].is_required():
        settings = {"task": f"{task.__module__}:{task.__qualname__}", **settings}
    _check_text(settings)
    named = task.settings_type.model_fields["model"].default
    if isinstance(named, ModelSettings) and "name" not in settings.get("model", {"name": ""}):
        settings = merged({"model": {"name": named.name}}, settings)
    if resumed is not None:
        return _resolve_resumed(task, settings, resumed, change)
    if not settings["data"]:
        raise ArgumentError(
            message("regard train", "no training data are given", hint=task.settings_type.no_data_hint)
        )
    other = None if settings.get("init_from") is None else config_of(Path(settings["init_from"]))
    if other is not None:
        check_one_seed(Path(settings["init_from"]))
        checked_settings(task, Path(settings["init_from"]))
        settings = _with_model_of(task, other, settings)
    settings, _ = task.defaults(settings, other=other)
    checked = build(task.settings_type, settings, "the settings")
    check_seeds(checked)
    task.check(checked, smallest_model(task, checked))
    data = task.read_data(checked)
    settings, notes = task.defaults(settings, data, other)
    checked = build(task.settings_type, settings, "the settings")
    return ResolvedSettings(checked, data, settings, notes)


def _resolve_resumed(
    task: type[RunTask], settings: Mapping[str, Any], folder: Path, change: bool
) -> ResolvedSettings:
    before = config_of(folder)
    fixed = (*task.settings_type.fixed, *BASELINE) if change else None
    checked_settings(task, folder, fixed)
    task.settings_type.check_resumed(folder, before, settings)
    whole = merged(without_alternatives(before, settings), settings)
    checked = build(task.settings_type, whole, str(folder / "config.toml"))
    check_seeds(checked)
    if (checked.seeds is None) != (before.get("seeds") is None):
        problem = "a run of one seed cannot become a run of several seeds, nor the other way round"
        raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint="use another --output"))
    if checked.seeds is not None:
        whole["seeds"] = checked.seeds  # a list as in config.toml, also if the user sets their number
    check_settings(folder, whole, fixed)
    task.check(checked)
    _check_data_files(task, folder, whole)
    fingerprints = None if change else fingerprints_of(folder)
    return ResolvedSettings(checked, task.read_data(checked, fingerprints), None)


def _check_text(value: Any, name: str = "") -> None:
    """Raise ArgumentError if a setting is a str that cannot be encoded as UTF-8, as config.toml requires.

    Such strings come from file names that are not valid UTF-8.

    value: the settings as nested dicts, or one of their values.
    name: the name of the setting, such as "data.source", for the error message.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            _check_text(inner, name)
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            hint = "rename the file or folder, or give a symbolic link to it"
            raise ArgumentError(message(name, f"{shown(value)} is not valid UTF-8", hint=hint)) from None


def _check_data_files(task: type[RunTask], folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise DataError if a data file of a resumed run does not exist.

    The hint of the error is a command that resumes the run with other paths, in case the files were moved.
    """
    data = settings["data"]
    for name in task.settings_type.paths:
        for path in data.get(name) or ():
            if not os.path.exists(path):
                names = [other for other in task.settings_type.paths if data.get(other)]
                options = " ".join(f"--{other.replace('_', '-')} NEW" for other in names)
                command = f"regard train --output {shell_word(folder)} --resume --change {options}"
                hint = f"if the data moved: {command}"
                problem = f"data.{name} of {folder}: there is no such file"
                raise DataError(message(shown(path), problem, hint=hint))


def _absolute(task: type[RunTask], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths, so that a run can be resumed from any folder."""
    data = dict(settings.get("data") or {})
    for name in task.settings_type.paths:
        if isinstance(data.get(name), str):
            data[name] = [data[name]]
        if isinstance(data.get(name), list):
            data[name] = [str(Path(path).absolute()) for path in data[name] if isinstance(path, str)]
    whole = {**settings, "data": data}
    if isinstance(settings.get("init_from"), str):
        whole["init_from"] = str(Path(settings["init_from"]).absolute())
    return whole


def _with_model_of(
    task: type[RunTask], other: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy the settings that a new run must have in common with the run of --init-from.

    These are the section [model], and the settings of [data] that RunSettings.fixed_data() returns. Raise
    ArgumentError if the user has set another value for one of these settings.

    other: the settings of the run of --init-from.
    settings: the settings of the new run.
    """
    names = task.settings_type.fixed_data()
    fixed = {"model": other.get("model", {}), "data": {name: other["data"].get(name) for name in names}}
    whole = merged(fixed, settings)
    changed = differences(
        fixed, {"model": whole["model"], "data": {name: whole["data"].get(name) for name in names}}
    )
    if changed:
        problem = "its weights do not fit these settings\n  " + "\n  ".join(changed)
        hint = "do not change the model and the tokenizer"
        raise ArgumentError(message(f"--init-from {settings['init_from']}", problem, hint=hint))
    return whole
