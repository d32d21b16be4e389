"""Train a translator in a run folder: a new run, a resumed one, or one that starts from another run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from regard.data import load_tokenizer
from regard.errors import ArgumentError, DataError, message
from regard.files.folder_lock import FolderLock, locked
from regard.models import Model, build_model
from regard.runs.devices import choose_device
from regard.runs.run_folder import (
    DATA,
    check_data,
    fingerprints_of,
    is_run,
    made_folder,
    write_data,
)
from regard.runs.run_manifest import MANIFEST, write_config_and_manifest
from regard.tasks.translation.load_run import WEIGHTS, checked_settings
from regard.tasks.translation.model_check import check_newest
from regard.tasks.translation.resolve_settings import resolve_settings
from regard.tasks.translation.speed_trial import plan_run
from regard.tasks.translation.translation_data import TOKENIZERS, Corpus, Split, read_split
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.tasks.translation.translation_task import TranslationTask
from regard.training.budget import budget_warning
from regard.training.checkpoints.averaging import averaged_from
from regard.training.checkpoints.checkpoints import STATE, Checkpoints
from regard.training.distributed import Processes, joined
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.progress import Progress, check_surroundings
from regard.training.settings import build
from regard.training.step_speed import fastest_threads

__all__ = [
    "Machine",
    "Outcome",
    "build_from",
    "check_folder",
    "load_task",
    "set_threads",
    "train_translation",
]


@dataclass(frozen=True)
class Machine:
    """Where a run is trained. device: cpu, cuda, mps or auto. threads: number of CPU threads, or None."""

    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a training. interrupted: the name of the signal that stopped it, or "".

    warning: a message if the minutes were too few for this model and these data, or "".
    """

    folder: Path
    progress: Progress
    interrupted: str = ""
    warning: str = ""


def train_translation(
    given: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    init_from: str | Path | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train a translator and write it to a run folder.

    given: settings, nested as in config.toml; those not given are chosen to suit the data. resume: continue
    the run in this folder, or start it. change: resume although settings or data have changed. init_from:
    another run, whose model, tokenizers and weights this one starts from. Ctrl-C, SIGTERM and SIGHUP save a
    checkpoint and stop; Outcome.interrupted names the signal.
    """
    machine, folder = machine or Machine(), Path(folder)
    if init_from is not None:
        given = {**given, "init_from": str(init_from)}
    device = choose_device(machine.device)
    with joined(device) as processes:
        exists = processes.share(check_folder(folder, resume, given) if processes.first else None)
        run = resolve_settings(given, folder if exists else None, change=change)
        if exists and not change:
            check_data(folder, run.split.fingerprints)
        with locked(made_folder(folder)) if processes.first else nullcontext() as lock:
            if processes.first and is_run(folder) != exists:
                raise ArgumentError(message(str(folder), "another training has just started in this folder"))
            say = _progress_lines(console, processes)
            if not exists:
                if run.settings.data.built_in is None:
                    say(f"{len(run.split.train):,} training pairs, {len(run.split.valid):,} validation pairs")
                say("preparing tokenizers and batches ...")
            corpus = _in_turn(processes, run.split, run.settings, folder, fresh=not exists)
            set_threads(machine, folder, device, processes)
            settings, text = run.settings, ""
            if run.incomplete is not None:
                if run.settings.training.minutes is not None:
                    say("measuring the speed of this machine ...")
                plan = plan_run(run.incomplete, corpus, device, processes)
                settings, text = build(TranslationSettings, plan.settings, "the settings"), plan.text
            return _trained(settings, corpus, folder, device, processes, console, text, lock)


def _progress_lines(console: Console | None, processes: Processes) -> Callable[[str], None]:
    """Return a function that prints a line before the first step, in the first process only."""
    shown = Console(highlight=False) if console is None else console

    def say(text: str) -> None:
        if processes.first:
            with contextlib.suppress(OSError, ValueError):  # a closed console does not stop a run
                shown.print(Text(text))

    return say


def check_folder(folder: Path, resume: bool, given: Mapping[str, Any]) -> bool:
    """Return whether the folder has a run; raise if that run cannot be resumed, or a new one not started."""
    exists = is_run(folder)
    if exists and (mean := _averaged(folder)):
        problem = f"this run is {mean}: it has weights but no optimizer state, so it cannot be resumed"
        hint = f"start a new run from its weights: --init-from {folder} with another --out"
        raise ArgumentError(message(str(folder), problem, hint=hint))
    if exists and not resume:
        hint = "--resume continues it; another --out starts a new run"
        raise ArgumentError(message(str(folder), "there is a run in this folder already", hint=hint))
    if not exists and Checkpoints(folder).all():
        problem = "the folder has checkpoints, but no config.toml"
        raise DataError(message(str(folder), problem, hint="restore config.toml, or choose another --out"))
    if not exists and resume and not given.get("data"):
        hint = "give a run folder, or name the data to start a run"
        raise ArgumentError(message(str(folder), "there is no run to resume", hint=hint))
    if not exists and (others := _others(folder)):
        problem = f"the folder is not a run folder, and has other files: {others[0]}"
        raise ArgumentError(message(str(folder), problem, hint="choose another --out"))
    return exists


def _averaged(folder: Path) -> str:
    """Return which checkpoints a run averages, as text; "" for other runs, and if it cannot be read."""
    try:
        states = ((each.state, str(each.path / STATE)) for each in Checkpoints(folder).all())
        about = next((averaged_from(*state) for state in states), None)
    except DataError:
        return ""
    return "" if about is None else str(about)


def _others(folder: Path) -> list[str]:
    """Return the files of a folder that are not those of a training killed before its first step."""
    ours = (*TOKENIZERS, DATA, MANIFEST, "cache")
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(name for name in names if not name.startswith(".") and name not in ours)


def _in_turn(
    processes: Processes, split: Split, settings: TranslationSettings, folder: Path, fresh: bool
) -> Corpus:
    """Prepare the corpus in the first process; then load it from the cache in the others."""
    corpus = None
    if processes.first:
        for name in TOKENIZERS if fresh else ():
            (folder / name).unlink(missing_ok=True)
            if settings.init_from is not None:
                load_tokenizer(Path(settings.init_from) / name, links=False).save(folder / name)
        corpus = Corpus.made(split, settings.data, folder)
    processes.wait()
    return corpus or Corpus.made(split, settings.data, folder)


def set_threads(machine: Machine, folder: Path, device: str, processes: Processes) -> None:
    """Set the number of threads: as requested, as in the resumed run, or the fastest.

    A resumed run keeps its number of threads: another number changes the order of summation, and the bits.
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


def build_from(settings: TranslationSettings, corpus: Corpus) -> Model:
    """Build the model of the settings, initialised with the seed."""
    torch.manual_seed(settings.seed)
    return build_model(settings.model.name, corpus.source.size, corpus.target.size, **settings.model.options)


def load_task(folder: str | Path, device: str = "cpu") -> TranslationTask:
    """Build the task of a run folder with untrained weights, for regard.training.nonfinite_steps.replay().

    device: the kind of device that the run was trained on, since batches are padded for CUDA graphs.
    """
    place = Path(folder)
    settings = checked_settings(place)
    corpus = Corpus.made(read_split(settings.data, fingerprints_of(place)), settings.data, place)
    return TranslationTask(build_from(settings, corpus), corpus, settings, Processes(), device)


def _trained(
    settings: TranslationSettings,
    corpus: Corpus,
    folder: Path,
    device: str,
    processes: Processes,
    console: Console | None,
    plan: str,
    lock: FolderLock | None,
) -> Outcome:
    sizes = corpus.source.size, corpus.target.size
    for run in (folder, *([] if settings.init_from is None else [Path(settings.init_from)])):
        check_newest(run, settings.model, sizes)
    model = build_from(settings, corpus)
    if settings.init_from is not None:
        _start_from(model, Path(settings.init_from), folder)
    task = TranslationTask(model, corpus, settings, processes, device)
    if processes.first:  # last, because it makes the folder a run folder
        write_data(folder, corpus.split.fingerprints)
        write_config_and_manifest(folder, settings.model_dump(), TOKENIZERS)
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
            _introduce(log, settings, corpus, model, plan)
        progress = trainer.run(interrupt)
        if processes.first and progress.ended:
            checked_settings(folder)  # a file may have been deleted or changed meanwhile
        log.event("ended" if progress.ended else "stopped", progress.ended or f"stopped by {interrupt.cause}")
    warning = ""
    if settings.training.minutes is not None:
        warning = budget_warning(progress.step, task.len_epoch(0) / settings.training.accumulate)
    return Outcome(folder, progress, "" if progress.ended else interrupt.cause, warning)


def _introduce(log: Log, settings: TranslationSettings, corpus: Corpus, model: Model, plan: str) -> None:
    """Log the data, the model and the chosen settings of a new run."""
    for note in (*corpus.split.notes, *corpus.notes):
        log.event("data", str(note), shown=note)
    count = sum(each.numel() for each in model.parameters())
    sizes = f"{corpus.source.size:,} source and {corpus.target.size:,} target tokens"
    start = "" if settings.init_from is None else f", starting from {Path(settings.init_from).name}"
    log.event("model", f"{settings.model.name}, {count:,} parameters, {sizes}{start}", parameters=count)
    if plan:
        log.event("plan", plan)


def _start_from(model: Model, other: Path, folder: Path) -> None:
    """Load the weights of another run, unless this run has checkpoints already."""
    if Checkpoints(folder).all():
        return
    checkpoints = Checkpoints(other)
    checkpoint = checkpoints.best(WEIGHTS) or checkpoints.latest(WEIGHTS)
    if checkpoint is None:
        raise DataError(message(str(other), "this run has no checkpoint to start from"))
    try:
        model.load_state_dict(checkpoint.tensors("weights"))
    except RuntimeError as error:
        problem = f"the weights do not fit: {str(error).splitlines()[-1].strip()}"
        raise DataError(message(str(checkpoint.path), problem)) from None
