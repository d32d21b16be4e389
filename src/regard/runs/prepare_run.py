"""Prepare a run before the first step: settings, data, tokenizers, number of threads and plan.

Training (train_run) and the dry run (estimate) call the functions in this order: check_run(),
prepare_corpus(), set_threads(), complete().
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import ArgumentError, DataError, message, naming_place, shell_word, shown
from regard.files.atomic_io import replace
from regard.files.untrusted import naming_damage, read_limited, strict
from regard.runs.cpu_threads import choose_threads
from regard.runs.run_folder import (
    DATA,
    MANIFEST,
    check_data,
    check_one_seed,
    check_settings,
    checkpoint_of,
    config_of,
    fingerprints_of,
    is_run,
)
from regard.runs.run_settings import ModelSettings, check_seeds
from regard.runs.run_task import Plan, RunTask, built_model, sizes_of, smallest_model
from regard.runs.stored_runs import checked_settings
from regard.training.checkpoints.checkpoints import STATE, Checkpoints, averaged_from
from regard.training.distributed import Processes
from regard.training.progress import check_surroundings, count
from regard.training.settings import build, differences, merged, named_tables, without_alternatives

FEW_EXAMPLES = 30
"""With fewer validation examples, a note says that the scores say little: the standard error of an accuracy
of 0.8 is then more than 0.07."""


@dataclass(frozen=True)
class Machine:
    """The device and the number of CPU threads of a run.

    device: cpu, cuda, mps or auto.
    threads: number of CPU threads. None: it is chosen by set_threads().
    jobs: the largest number of seeds that are trained at the same time, each in a process of `regard train`.
        None: as many as the cores and the memory allow; see seed_runs.seed_jobs().
    """

    device: str = "auto"
    threads: int | None = None
    jobs: int | None = 1


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run before its first step, with complete settings and encoded data.

    settings: all settings, as in config.toml.
    corpus: the encoded data, the result of RunTask.encode_data().
    plan: the result of RunTask.plan(), with the chosen settings. None for a resumed run.
    notes: messages about the data, for the log.
    fingerprints: hashes of the data.
    """

    settings: Any
    corpus: Any
    plan: Plan | None
    notes: tuple[Any, ...]
    fingerprints: Mapping[str, str]


def check_run(
    task: type[RunTask],
    settings: Mapping[str, Any],
    folder: Path,
    processes: Processes,
    *,
    resume: bool,
    change: bool,
) -> ResolvedSettings:
    """Check the folder, settings and data of a run. Raise an error if it cannot be started or resumed.

    For the arguments, see train_run().
    """
    exists = processes.share(_check_folder(task, folder, resume, settings) if processes.first else None)
    run = resolve_settings(task, settings, folder if exists else None, change=change)
    options = {"output": str(folder), "resume": resume, "change": change}
    _check_equal({**options, **run.settings.model_dump(), "data.json": run.data.fingerprints}, processes)
    if exists and not change:
        check_data(folder, run.data.fingerprints)
    return run


def _check_equal(settings: Mapping[str, Any], processes: Processes) -> None:
    """Raise ArgumentError in all processes if the settings or the data of one of them are different."""
    own = strict(settings)
    first = processes.share(own)
    for rank in range(1, processes.world):
        changed = differences(first, processes.share(own, rank))
        if changed:
            problem = f"process {rank} has other settings than process 0\n  " + "\n  ".join(changed)
            hint = "start all processes with the same command and the same data"
            raise ArgumentError(message("torchrun", problem, hint=hint))


def _check_folder(task: type[RunTask], folder: Path, resume: bool, settings: Mapping[str, Any]) -> bool:
    """Return whether there is a run in the folder.

    Raise an error if there is a run that cannot be resumed. If there is no run, raise an error if a new run
    cannot be started in the folder.
    """
    exists, mean = is_run(folder), None
    with suppress(DataError):  # resume() reports checkpoints that cannot be read
        states = ((each.state, str(each.path / STATE)) for each in Checkpoints(folder).all() if exists)
        mean = next((averaged_from(*state) for state in states), None)
    if mean is not None:
        problem = f"this run is {mean}: it has weights but no optimizer state, so it cannot be resumed"
        hint = f"start a new run from its weights: --init-from {shell_word(folder)} with another --output"
        raise ArgumentError(message(str(folder), problem, hint=hint))
    if exists and not resume:
        hint = "use --resume to continue the run, or another --output to start a new run"
        raise ArgumentError(message(str(folder), "this folder already contains a run", hint=hint))
    if not exists and Checkpoints(folder).all():
        problem = "the folder has checkpoints, but no config.toml"
        raise DataError(message(str(folder), problem, hint="restore config.toml, or choose another --output"))
    if not exists and checkpoint_of(folder):
        hint = f"resume its run: regard train --output {shell_word(folder.parent)} --resume"
        raise ArgumentError(message(str(folder), "this is a checkpoint, not a run folder", hint=hint))
    if not exists and resume and not settings.get("data"):
        hint = "give the folder of a run, or set the training data to start a new run"
        raise ArgumentError(message(str(folder), "there is no run to resume", hint=hint))
    # If a run was killed before its first step, the folder has the files that are written before it.
    ours = (*task.files, DATA, MANIFEST, "cache")
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    others = sorted(name for name in names if not name.startswith(".") and name not in ours)
    if not exists and others:
        problem = f"the folder is not a run folder, and has other files: {others[0]}"
        raise ArgumentError(message(str(folder), problem, hint="choose another --output"))
    return exists


def prepare_corpus(task: type[RunTask], run: ResolvedSettings, folder: Path, processes: Processes) -> Any:
    """Encode the data of a run and return the corpus, the result of RunTask.encode_data().

    The first process encodes the data. The other processes wait, then load the encoded data from the cache.
    """
    corpus, settings = None, run.settings
    if processes.first:
        for name in task.files if run.is_new else ():
            (folder / name).unlink(missing_ok=True)
        if run.is_new and settings.init_from is not None:
            copy_files(task, Path(settings.init_from), folder)
        corpus = task.encode_data(run.data, settings, folder)
    processes.wait()
    return task.encode_data(run.data, settings, folder) if corpus is None else corpus


def copy_files(task: type[RunTask], source: Path, target: Path) -> None:
    """Copy the files in RunTask.files, such as tokenizers, from one run folder to another."""
    for name in task.files:
        with naming_damage(source / name):
            content = read_limited(source / name, "tokenizer")
        replace(target / name, content)


def set_threads(machine: Machine, folder: Path, device: str, processes: Processes) -> None:
    """Set the number of CPU threads that PyTorch uses for a run.

    A resumed run on the CPU keeps its number of threads, if machine.threads is not set. Another number would
    change the order of summation, and so the rounding of the results. For a new run, see choose_threads();
    with several processes, nothing is measured.
    """
    before = None
    if machine.threads is None and device == "cpu":
        with suppress(DataError):
            before = Checkpoints(folder).latest()
    if before is not None:
        state = before.state
        check_surroundings(state, str(before.path / STATE))
        torch.set_num_threads(state["threads"])
    elif machine.threads is not None or processes.world == 1:
        choose_threads(device, machine.threads)


def complete(
    task: type[RunTask],
    run: ResolvedSettings,
    corpus: Any,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> PreparedRun:
    """Complete the settings of a new run with RunTask.plan(). A resumed run keeps its settings.

    timed: whether to measure the speed of training steps even if the task does not need it to choose
        settings.
    """
    more = () if corpus is run.data else getattr(corpus, "notes", ())
    notes = (*run.data.notes, *run.notes, *more)
    valid = getattr(run.data, "valid", None)
    if isinstance(valid, Sized) and len(valid) < FEW_EXAMPLES:
        examples = count(len(valid), "validation example")
        notes = (*notes, f"only {examples}: the scores say little, and can be high or low by chance")
    if run.incomplete is None:
        return PreparedRun(run.settings, corpus, None, notes, run.data.fingerprints)
    plan = task.plan(run.incomplete, corpus, device, processes, timed)
    settings = build(task.settings_type, plan.settings, "the settings")
    return PreparedRun(settings, corpus, plan, notes, run.data.fingerprints)


def build_from(task: type[RunTask], settings: Any, corpus: Any) -> nn.Module:
    """Build the model of the settings. Its initial weights depend on settings.seed."""
    torch.manual_seed(settings.seed)
    with naming_place("[model]"):
        return built_model(task, settings.model, sizes_of(corpus))


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
