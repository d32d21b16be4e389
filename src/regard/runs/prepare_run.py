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

from regard.errors import ArgumentError, DataError, message, naming_place, shell_word
from regard.files.atomic_io import replace
from regard.files.untrusted import naming_damage, read_limited
from regard.runs.resolve_settings import ResolvedSettings, resolve_settings
from regard.runs.run_folder import DATA, MANIFEST, check_data, checkpoint_of, is_run
from regard.runs.run_task import Plan, RunTask, sizes_of
from regard.training.budget import count
from regard.training.checkpoints.averaging import averaged_from
from regard.training.checkpoints.checkpoints import STATE, Checkpoints
from regard.training.distributed import Processes
from regard.training.logs.json_log import strict
from regard.training.progress import check_surroundings
from regard.training.settings import build, differences
from regard.training.step_speed import fastest_threads

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

    - If machine.threads is set, it is used.
    - Otherwise, a resumed run on the CPU keeps its number of threads. Another number would change the order
    of
      summation, and so the rounding of the results.
    - For a new run on the CPU, the fastest number is measured and used. It is not measured if there are
    several
      processes, or if the environment variable OMP_NUM_THREADS is set.
    """
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
        return
    if device != "cpu":
        return
    try:
        before = Checkpoints(folder).latest()
    except DataError:
        before = None
    if before is not None:
        state = before.state
        check_surroundings(state, str(before.path / STATE))
        torch.set_num_threads(state["threads"])
    elif processes.world == 1 and torch.get_num_threads() > 1 and "OMP_NUM_THREADS" not in os.environ:
        fastest_threads(torch.get_num_threads())


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
        return task.build_model(settings.model, sizes_of(corpus))
