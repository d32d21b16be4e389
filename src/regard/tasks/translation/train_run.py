"""Running: from settings to a trained run folder, begun, resumed, or started from another run."""

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
from regard.tasks.translation.load_run import checked_settings
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
    "load_task",
    "ready_to_begin",
    "set_threads",
    "train_translation",
]


@dataclass(frozen=True)
class Machine:
    """Where a run is trained: cpu, cuda, mps, or auto for the best there is; threads as many as given."""

    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a training ended: where the run stands, and by what it was interrupted, if it was.

    warning: that the minutes were too few for this model and these data; "" if they were enough.
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
    """Train a translator into a run folder.

    given: settings, nested as in config.toml; what is not said is filled in to suit the data. resume: go on
    where the run in this folder stands, or begin it. change: go on even though settings or data are not what
    they were. init_from: another run, whose model, tokenizers and weights this one starts with. Ctrl-C,
    SIGTERM and SIGHUP save a checkpoint and stop; the outcome names which of them it was.
    """
    machine, folder = machine or Machine(), Path(folder)
    if init_from is not None:
        given = {**given, "init_from": str(init_from)}
    device = choose_device(machine.device)
    with joined(device) as processes:
        begun = processes.share(ready_to_begin(folder, resume, given) if processes.first else None)
        run = resolve_settings(given, folder if begun else None, change=change)
        if begun and not change:
            check_data(folder, run.split.fingerprints)
        with locked(made_folder(folder)) if processes.first else nullcontext() as lock:
            if processes.first and is_run(folder) != begun:
                raise ArgumentError(message(str(folder), "another training has just begun in this folder"))
            say = _progress_lines(console, processes)
            if not begun:
                say(f"{len(run.split.train):,} training pairs, {len(run.split.valid):,} validation pairs")
                say("preparing tokenizers and batches ...")
            corpus = _in_turn(processes, run.split, run.settings, folder, fresh=not begun)
            set_threads(machine, folder, device, processes)
            settings, text = run.settings, ""
            if run.incomplete is not None:
                if run.settings.training.minutes is not None:
                    say("measuring the speed of this machine ...")
                plan = plan_run(run.incomplete, corpus, device, processes)
                settings, text = build(TranslationSettings, plan.settings, "the settings"), plan.text
            return _trained(settings, corpus, folder, device, processes, console, text, lock)


def _progress_lines(console: Console | None, processes: Processes) -> Callable[[str], None]:
    """A function that prints a line of progress before the first step, in the first process."""
    shown = Console(highlight=False) if console is None else console

    def say(text: str) -> None:
        if processes.first:
            with contextlib.suppress(OSError, ValueError):  # a closed console does not end a run
                shown.print(Text(text))

    return say


def ready_to_begin(folder: Path, resume: bool, given: Mapping[str, Any]) -> bool:
    """Whether a run was begun in this folder; raises where it should not go on, or cannot."""
    begun = is_run(folder)
    if begun and (mean := _averaged(folder)):
        problem = f"this run is {mean}: there is nothing in it to go on with, only weights to start from"
        hint = f"another run can start from it: --init-from {folder} with another --out"
        raise ArgumentError(message(str(folder), problem, hint=hint))
    if begun and not resume:
        hint = "--resume goes on with it; another --out begins anew"
        raise ArgumentError(message(str(folder), "there is a run in this folder already", hint=hint))
    if not begun and Checkpoints(folder).all():
        problem = "there are checkpoints in this folder, and no config.toml"
        raise DataError(message(str(folder), problem, hint="bring it back, or give another --out"))
    if not begun and resume and not given.get("data"):
        hint = "give the folder of a run, or name the data to begin one"
        raise ArgumentError(message(str(folder), "there is no run to resume", hint=hint))
    if not begun and (others := _others(folder)):
        problem = f"this folder is no run, and holds other files: {others[0]}"
        raise ArgumentError(message(str(folder), problem, hint="another --out begins in a folder of its own"))
    return begun


def _averaged(folder: Path) -> str:
    """What a run is the mean of, in words, if it is one; "" otherwise, and where that cannot be read."""
    try:
        states = ((each.state, str(each.path / STATE)) for each in Checkpoints(folder).all())
        about = next((averaged_from(*state) for state in states), None)
    except DataError:
        return ""
    return "" if about is None else str(about)


def _others(folder: Path) -> list[str]:
    """What lies in a folder and is not what a training leaves that was killed before it began."""
    ours = (*TOKENIZERS, DATA, MANIFEST, "cache")
    found = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(name for name in found if not name.startswith(".") and name not in ours)


def _in_turn(
    processes: Processes, split: Split, settings: TranslationSettings, folder: Path, fresh: bool
) -> Corpus:
    """The corpus, made by the first process and found made by the others."""
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
    """Set the number of threads: the one asked for, the one of the run that is resumed, or the fastest.

    A run keeps its number: with another, sums are rounded in another order.
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
    """The model of the settings, its first weights drawn from the seed."""
    torch.manual_seed(settings.seed)
    return build_model(settings.model.name, corpus.source.size, corpus.target.size, **settings.model.options)


def load_task(folder: str | Path, device: str = "cpu") -> TranslationTask:
    """The task of a run folder, its weights untrained: what regard.training.nonfinite_steps.replay() needs.

    device: the kind that it was trained on; where steps were captured, batches are padded as they were.
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
    if processes.first:  # not before: from here on there is a run in this folder
        write_data(folder, corpus.split.fingerprints)
        write_config_and_manifest(folder, settings.model_dump(), TOKENIZERS)
    board = folder / "tensorboard" if settings.training.tensorboard else None
    said = console if processes.first else Console(quiet=True)
    path = folder / "log.jsonl" if processes.first else None
    log = Log(path, console=said, board=board, record=settings.training.log_every)
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
    with interruptible() as asked, log:
        found = trainer.resume()
        if found is not None:
            log.event("resumed", f"resumed at step {found.step:,}", step=found.step)
        else:
            _introduce(log, settings, corpus, model, plan)
        progress = trainer.run(asked)
        if processes.first and progress.ended:
            checked_settings(folder)  # a file may have been removed or changed in the meantime
        log.event("ended" if progress.ended else "stopped", progress.ended or f"stopped by {asked.cause}")
    few = ""
    if settings.training.minutes is not None:
        few = budget_warning(progress.step, task.len_epoch(0) / settings.training.accumulate)
    return Outcome(folder, progress, "" if progress.ended else asked.cause, few)


def _introduce(log: Log, settings: TranslationSettings, corpus: Corpus, model: Model, plan: str) -> None:
    """Log what a run begins with: the data, the model, and the settings that were chosen."""
    for said in (*corpus.split.said, *corpus.said):
        log.event("data", str(said), shown=said)
    count = sum(each.numel() for each in model.parameters())
    sizes = f"{corpus.source.size:,} source and {corpus.target.size:,} target tokens"
    start = "" if settings.init_from is None else f", starting from {Path(settings.init_from).name}"
    log.event("model", f"{settings.model.name}, {count:,} parameters, {sizes}{start}", parameters=count)
    if plan:
        log.event("plan", plan)


def _start_from(model: Model, other: Path, folder: Path) -> None:
    """Give a model the weights of another run, unless this one has some of its own already."""
    if Checkpoints(folder).all():
        return
    checkpoints = Checkpoints(other)
    found = checkpoints.best() or checkpoints.latest()
    if found is None:
        raise DataError(message(str(other), "this run has no checkpoint to start from"))
    try:
        model.load_state_dict(found.tensors("weights"))
    except RuntimeError as error:
        problem = f"the weights do not fit: {str(error).splitlines()[-1].strip()}"
        raise DataError(message(str(found.path), problem)) from None
