"""Train a task in a run folder: a new run, a resumed run, or a run that starts from other weights.

estimate() returns the size, memory and duration of a run without training it (--dry-run).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from regard.errors import ArgumentError, DataError, message
from regard.fast.report import fast_code
from regard.files.folder_lock import FolderLock, locked
from regard.runs.devices import choose_device, start_device
from regard.runs.prepare_run import (
    Machine,
    PreparedRun,
    build_from,
    check_run,
    complete,
    copy_files,
    prepare_corpus,
    set_threads,
)
from regard.runs.run_folder import is_run, made_folder, write_config_and_manifest, write_data
from regard.runs.run_task import RunTask, named_sizes, sizes_of
from regard.runs.seed_runs import Outcome, seed_jobs, train_seeds
from regard.runs.stored_runs import WEIGHTS, check_newest, checked_settings
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes, joined
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log, Logger
from regard.training.loop import Trainer
from regard.training.precision import chosen_precision
from regard.training.progress import budget_warning, total_steps


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
    loggers: Sequence[Logger] = (),
) -> Outcome:
    """Train a model for a task and save it in a run folder.

    task: the task class, such as TranslationTask.
    folder: the run folder.
    settings: nested dicts, like the sections of config.toml. The task chooses settings that are missing. If
        "seeds" is set (a number or a list), one model per seed is trained, in the run folders seed-0, seed-1
        and so on.
    resume: whether to continue the run in this folder. If there is no run, a new run is started.
    change: whether to resume the run even if its settings or data have changed.
    init_from: the folder of another run. The new run uses the model, the tokenizers and the weights of the
        other run.
    machine: the device, the number of CPU threads, and how many seeds are trained at the same time.
    console: the rich console for the progress. None: standard output.
    loggers: functions that are called for each event of the run, such as an evaluation or a checkpoint; see
        regard.training.logs.log.

    After Ctrl-C, SIGTERM or SIGHUP, a checkpoint is saved, and training stops. Outcome.interrupted is the
    name of the signal.
    """
    _check_arguments(task, loggers)
    machine, folder = machine or Machine(), Path(folder)
    if init_from is not None:
        settings = {**settings, "init_from": str(init_from)}
    device = choose_device(machine.device)
    with joined(device) as processes:
        run = check_run(task, settings, folder, processes, resume=resume, change=change)
        start_device(device, processes.local)
        if processes.world == 1:
            task.start(run.settings, device)
        if run.settings.seeds is not None and processes.world > 1:
            problem = f"several seeds are trained in one process, but there are {processes.world} processes"
            raise ArgumentError(message("--seeds", problem, hint="start regard train without torchrun"))
        with locked(made_folder(folder)) if processes.first else nullcontext() as lock:
            if processes.first and is_run(folder) == run.is_new:
                raise ArgumentError(message(str(folder), "another training has just started in this folder"))
            say = _progress_lines(console, processes)
            if run.is_new:
                say(f"preparing {'tokenizers and ' if task.files else ''}batches ...")
            corpus = prepare_corpus(task, run, folder, processes)
            if processes.world == 1 and run.settings.seeds is None:
                task.start(run.settings, device, corpus)
            set_threads(machine, folder, device, processes)
            if run.is_new and run.settings.training.minutes is not None:
                say("measuring the speed of this machine ...")
            prepared = complete(task, run, corpus, device, processes)
            if prepared.settings.seeds is None:
                return _trained(task, prepared, folder, device, processes, console, lock, loggers)

            def train_seed(own: PreparedRun, place: Path, lock: FolderLock | None) -> Outcome:
                introduced = own.settings.seed != prepared.settings.seeds[0]
                return _trained(task, own, place, device, processes, console, lock, loggers, introduced)

            jobs = None if loggers else seed_jobs(task, prepared, machine, device)
            return train_seeds(task, prepared, folder, train_seed, jobs=jobs, console=console, change=change)


def _check_arguments(task: object, loggers: object) -> None:
    """Raise ArgumentError unless `task` is a task class and `loggers` is a list of functions."""
    if not (isinstance(task, type) and issubclass(task, RunTask)):
        hint = "import the class: from regard.tasks.classification import ClassificationTask"
        problem = f"task is {task!r}" if isinstance(task, str) else f"task is a {type(task).__name__}"
        raise ArgumentError(message("train_run()", problem, expected="a subclass of RunTask", hint=hint))
    if isinstance(loggers, str) or not isinstance(loggers, Sequence) or not all(map(callable, loggers)):
        problem = f"loggers is a {type(loggers).__name__}"
        expected = "a list of functions logger(event, values)"
        hint = "put it in a list: loggers=[logger]" if callable(loggers) else ""
        raise ArgumentError(message("train_run()", problem, expected=expected, hint=hint))


def _progress_lines(console: Console | None, processes: Processes) -> Callable[[str], None]:
    """Return a function that prints a line of text in the first process, and does nothing in the others.

    The lines report the preparation of the training, such as "measuring the speed of this machine ...".
    """
    shown = Console(highlight=False) if console is None else console

    def say(text: str) -> None:
        if processes.first:
            with contextlib.suppress(OSError, ValueError):  # training continues if the console is closed
                shown.print(Text(text))

    return say


def _trained(
    kind: type[RunTask],
    run: PreparedRun,
    folder: Path,
    device: str,
    processes: Processes,
    console: Console | None,
    lock: FolderLock | None,
    loggers: Sequence[Logger],
    introduced: bool = False,
) -> Outcome:
    """Train a prepared run until it ends or is interrupted.

    introduced: whether the data and the model were printed before, for another seed.
    """
    settings = run.settings
    log = Log(
        folder / "log.jsonl" if processes.first else None,
        console=console if processes.first else Console(quiet=True),
        board=folder / "tensorboard" if settings.training.tensorboard and processes.first else None,
        loggers=loggers if processes.first else (),
        record=settings.training.log_every,
    )
    trainer = build_trainer(kind, run, folder, device, processes, log, lock)
    task = trainer.task
    with interruptible() as interrupt, log:
        checkpoint = trainer.resume()
        step = trainer.progress.step
        log.tell("start", step, settings=settings.model_dump(), resumed=step > 0)
        if checkpoint is not None:
            log.event("resumed", f"resumed at step {checkpoint.step:,}", step=checkpoint.step)
        elif not introduced:
            for note in run.notes:
                log.event("data", str(note), shown=note)
            parameters = sum(each.numel() for each in task.model.parameters())
            sizes = named_sizes(kind, sizes_of(run.corpus))
            text = ", ".join(filter(None, (settings.model.name, f"{parameters:,} parameters", sizes)))
            start = "" if settings.init_from is None else f", starting from {Path(settings.init_from).name}"
            log.event("model", f"{text}{start}", parameters=parameters)
            if run.plan is not None and run.plan.text:
                log.event("plan", run.plan.text)
        progress = trainer.run(interrupt)
        if processes.first and progress.ended:
            checked_settings(kind, folder)  # check again: files may have changed during training
            scores = {each.step: each.scores for each in log.display.evaluations}
            if quality := settings.describe_quality(scores.get(progress.best_step, {}), run.corpus):
                log.event("quality", quality)
        log.event("ended" if progress.ended else "stopped", progress.ended or f"stopped by {interrupt.cause}")
    warning = ""
    if settings.training.minutes is not None:
        warning = budget_warning(progress.step, task.len_epoch(0) / settings.training.accumulation_steps)
    return Outcome(folder, progress, "" if progress.ended else interrupt.cause, warning)


def build_trainer(
    kind: type[RunTask],
    run: PreparedRun,
    folder: Path,
    device: str,
    processes: Processes,
    log: Log,
    lock: FolderLock | None,
) -> Trainer:
    """Build the model and the trainer of a run, and write its settings to the folder."""
    settings, corpus = run.settings, run.corpus
    sizes = sizes_of(corpus)
    for run_folder in (folder, *([] if settings.init_from is None else [Path(settings.init_from)])):
        check_newest(kind, run_folder, settings.model, sizes)
    model = build_from(kind, settings, corpus)
    if settings.init_from is not None:
        _start_from(model, Path(settings.init_from), folder)
    task = kind(model, corpus, settings, processes, device)
    if processes.first:  # last, because config.toml makes the folder a run folder
        write_data(folder, run.fingerprints)
        write_config_and_manifest(kind, folder, settings.model_dump())
    place = torch.device(device, processes.local) if device == "cuda" else torch.device(device)
    return Trainer(
        task,
        settings.training,
        folder,
        seed=settings.seed,
        device=place,
        processes=processes,
        log=log,
        lock=lock,
    )


def _start_from(model: nn.Module, other: Path, folder: Path) -> None:
    """Load the weights of another run (--init-from) into the model. If this run has checkpoints, do nothing.

    other: the folder of the other run. The weights of its best checkpoint are loaded. If no checkpoint is
        marked as the best, the weights of the latest checkpoint are loaded.
    folder: the folder of this run.
    """
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


LINES = 10_000
"""For an estimate, tokenizers are trained on this number of lines. This is enough to estimate sentence
lengths."""


@dataclass(frozen=True)
class Estimate:
    """The settings, data, size, memory and duration of a planned run.

    settings: all settings of the run, including the settings that RunTask.plan() has chosen.
    notes: messages about the data, then a sentence about the settings that RunTask.plan() has chosen.
    parameters: number of model parameters.
    sizes: the sizes that the model depends on, such as the vocabulary sizes, as text.
    epoch: number of batches per epoch.
    steps: number of training steps of the run. If the length of the run is set in minutes, this is an
        estimate. For a resumed run with a length in minutes, it is None.
    memory: bytes that training on the largest batch needs, for weights, gradients, optimizer state and
        activations.
    seconds: estimated duration of the run. None if the run is resumed.
    precision: the precision of training steps, and why.
    code: what computes training steps and searches: names of fast twins, or why they do not apply.
    """

    settings: Any
    notes: tuple[Any, ...]
    parameters: int
    sizes: str
    epoch: int
    steps: int | None
    memory: int
    seconds: float | None
    precision: str
    code: Mapping[str, str]


def estimate(
    task: type[RunTask],
    settings: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    machine: Machine | None = None,
) -> Estimate:
    """Estimate the size, memory and duration of a run without training it. Nothing is written to `folder`.

    The data is read, tokenizers are trained on a part of it, and the speed of training steps is measured. For
    the arguments and the errors, see train_run().
    """
    machine, folder = machine or Machine(), Path(folder)
    device = choose_device(machine.device)
    run = check_run(task, settings, folder, Processes(), resume=resume, change=change)
    with TemporaryDirectory() as scratch:
        tokenizers = run.settings.init_from if run.is_new else folder
        place = Path(scratch)
        if tokenizers is not None:
            copy_files(task, Path(tokenizers), place)
        corpus = task.encode_data(run.data, run.settings, place, place / "cache", LINES)
        if run.is_new:
            set_threads(machine, folder, device, Processes())
        prepared = complete(task, run, corpus, device, Processes(), timed=True)
        chosen, plan = prepared.settings, prepared.plan
        model = build_from(task, chosen, corpus)
        built = task(model, corpus, chosen, Processes())
        parameters = sum(each.numel() for each in model.parameters())
        epoch = built.len_epoch(0)
        steps = total_steps(chosen.training, epoch)
        if steps is None and plan is not None and plan.epochs is not None:  # the length is set in minutes
            steps = round(plan.epochs * epoch / chosen.training.accumulation_steps)
        copies = 4 + bool(chosen.training.ema)  # weights, gradients, two moments of Adam, and EMA
        return Estimate(
            chosen,
            (*prepared.notes, *((plan.text,) if plan and plan.text else ())),
            parameters,
            named_sizes(task, sizes_of(corpus)),
            epoch,
            steps,
            4 * parameters * copies + _activation_bytes(built),
            None if plan is None else plan.seconds,
            ", because ".join(chosen_precision(chosen.training.precision, torch.device(device), model)),
            fast_code(model.to(device)),
        )


def _activation_bytes(task: RunTask) -> int:
    """Return how many bytes of activations autograd saves in the forward pass of the largest batch."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    largest = task.largest_batch()
    task.model.train()
    weights = {each.untyped_storage().data_ptr() for each in task.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = task.loss(task.prepare(largest, "cpu"))
    del loss
    return sum(size for pointer, size in sizes.items() if pointer not in weights)
