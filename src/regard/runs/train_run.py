"""Train a task in a run folder: a new run, a resumed one, or one that starts from another run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from regard.errors import ArgumentError, DataError, message
from regard.files.folder_lock import FolderLock, locked
from regard.runs.devices import choose_device
from regard.runs.model_check import check_newest
from regard.runs.prepare_run import (
    Machine,
    PreparedRun,
    build_from,
    check_run,
    complete,
    prepare_corpus,
    set_threads,
)
from regard.runs.run_folder import fingerprints_of, is_run, made_folder, write_data
from regard.runs.run_manifest import write_config_and_manifest
from regard.runs.run_task import RunTask
from regard.runs.stored_runs import WEIGHTS, checked_settings
from regard.training.budget import budget_warning
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes, joined
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.progress import Progress

__all__ = ["Outcome", "build_task", "train_run"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a training. interrupted: the name of the signal that stopped it, or "".

    warning: a message if the minutes were too few for this model and these data, or "".
    """

    folder: Path
    progress: Progress
    interrupted: str = ""
    warning: str = ""


def train_run(
    task: type[RunTask],
    settings: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    init_from: str | Path | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train a task and write it to a run folder.

    settings: nested as in config.toml; the task chooses those that are missing. resume: continue the run in
    this folder, or start it. change: resume although settings or data have changed. init_from: another run,
    whose model, tokenizers and weights this one starts from. Ctrl-C, SIGTERM and SIGHUP save a checkpoint and
    stop; Outcome.interrupted names the signal.
    """
    machine, folder = machine or Machine(), Path(folder)
    if init_from is not None:
        settings = {**settings, "init_from": str(init_from)}
    device = choose_device(machine.device)
    with joined(device) as processes:
        run = check_run(task, settings, folder, processes, resume=resume, change=change)
        with locked(made_folder(folder)) if processes.first else nullcontext() as lock:
            if processes.first and is_run(folder) == run.is_new:
                raise ArgumentError(message(str(folder), "another training has just started in this folder"))
            say = _progress_lines(console, processes)
            if run.is_new:
                if text := task.summary(run.data):
                    say(text)
                say("preparing tokenizers and batches ...")
            corpus = prepare_corpus(task, run, folder, processes)
            set_threads(machine, folder, device, processes)
            if run.is_new and run.settings.training.minutes is not None:
                say("measuring the speed of this machine ...")
            prepared = complete(task, run, corpus, device, processes)
            return _trained(task, prepared, folder, device, processes, console, lock)


def _progress_lines(console: Console | None, processes: Processes) -> Callable[[str], None]:
    """Return a function that prints a line before the first step, in the first process only."""
    shown = Console(highlight=False) if console is None else console

    def say(text: str) -> None:
        if processes.first:
            with contextlib.suppress(OSError, ValueError):  # a closed console does not stop a run
                shown.print(Text(text))

    return say


def build_task(task: type[RunTask], folder: str | Path, device: str = "cpu") -> RunTask:
    """Build the task of a run folder with untrained weights, for regard.training.nonfinite_steps.replay().

    device: the kind of device that the run was trained on, since batches are padded for CUDA graphs.
    """
    place = Path(folder)
    settings = checked_settings(task, place)
    corpus = task.encode_data(task.read_data(settings, fingerprints_of(place)), settings, place)
    return task(build_from(task, settings, corpus), corpus, settings, Processes(), device)


def _trained(
    kind: type[RunTask],
    run: PreparedRun,
    folder: Path,
    device: str,
    processes: Processes,
    console: Console | None,
    lock: FolderLock | None,
) -> Outcome:
    settings, corpus = run.settings, run.corpus
    sizes = kind.sizes(corpus)
    for run_folder in (folder, *([] if settings.init_from is None else [Path(settings.init_from)])):
        check_newest(kind, run_folder, settings.model, sizes)
    model = build_from(kind, settings, corpus)
    if settings.init_from is not None:
        _start_from(model, Path(settings.init_from), folder)
    task = kind(model, corpus, settings, processes, device)
    if processes.first:  # last, because it makes the folder a run folder
        write_data(folder, run.fingerprints)
        write_config_and_manifest(folder, settings.model_dump(), kind.files)
    board = folder / "tensorboard" if settings.training.tensorboard else None
    shown = console if processes.first else Console(quiet=True)
    path = folder / "log.jsonl" if processes.first else None
    log = Log(path, console=shown, board=board, record=settings.training.log_every)
    place = torch.device(device, processes.local) if device == "cuda" else torch.device(device)
    trainer = Trainer(
        task,
        settings.training,
        folder,
        seed=settings.seed,
        device=place,
        processes=processes,
        log=log,
        lock=lock,
    )
    with interruptible() as interrupt, log:
        checkpoint = trainer.resume()
        if checkpoint is not None:
            log.event("resumed", f"resumed at step {checkpoint.step:,}", step=checkpoint.step)
        else:
            _introduce(log, run, task)
        progress = trainer.run(interrupt)
        if processes.first and progress.ended:
            checked_settings(kind, folder)  # a file may have been deleted or changed meanwhile
        log.event("ended" if progress.ended else "stopped", progress.ended or f"stopped by {interrupt.cause}")
    warning = ""
    if settings.training.minutes is not None:
        warning = budget_warning(progress.step, task.len_epoch(0) / settings.training.accumulation_steps)
    return Outcome(folder, progress, "" if progress.ended else interrupt.cause, warning)


def _introduce(log: Log, run: PreparedRun, task: RunTask) -> None:
    """Log the data, the model and the chosen settings of a new run."""
    settings = run.settings
    for note in (*run.notes, *task.corpus_notes()):
        log.event("data", str(note), shown=note)
    count = sum(each.numel() for each in task.model.parameters())
    text = ", ".join(filter(None, (settings.model.name, f"{count:,} parameters", task.described())))
    start = "" if settings.init_from is None else f", starting from {Path(settings.init_from).name}"
    log.event("model", f"{text}{start}", parameters=count)
    if run.plan is not None and run.plan.text:
        log.event("plan", run.plan.text)


def _start_from(model: nn.Module, other: Path, folder: Path) -> None:
    """Load the weights of another run, unless this run has checkpoints already."""
    if Checkpoints(folder).all():
        return
    checkpoints = Checkpoints(other)
    checkpoint = checkpoints.best(WEIGHTS) or checkpoints.latest(WEIGHTS)
    if checkpoint is None:
        raise DataError(message(str(other), "this run has no checkpoint to start from"))
    try:
        model.load_state_dict(checkpoint.model_weights())
    except RuntimeError as error:
        problem = f"the weights do not fit: {str(error).splitlines()[-1].strip()}"
        raise DataError(message(str(checkpoint.path), problem)) from None
