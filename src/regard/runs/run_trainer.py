"""Build the trainer of a prepared run: the model with its initial weights, the run folder and the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import DataError, message
from regard.files.folder_lock import FolderLock
from regard.runs.model_check import check_newest
from regard.runs.prepare_run import PreparedRun, build_from
from regard.runs.run_folder import write_data
from regard.runs.run_manifest import write_config_and_manifest
from regard.runs.run_task import RunTask, named_sizes, sizes_of
from regard.runs.stored_runs import WEIGHTS
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.progress import Progress

__all__ = ["Outcome", "build_trainer", "introduce"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of train_run().

    progress: the counters of the run. For a run of several seeds, those of the last seed that was trained.
    interrupted: the name of the signal that stopped training, or "".
    warning: a message if training.minutes was too short for this model and these data, otherwise "".
    failed: for a run of several seeds: the error message of each seed with a loss, gradient or weight that
        became NaN or infinite.
    """

    folder: Path
    progress: Progress
    interrupted: str = ""
    warning: str = ""
    failed: Mapping[int, str] = field(default_factory=dict)


def build_trainer(
    kind: type[RunTask],
    run: PreparedRun,
    folder: Path,
    device: str,
    processes: Processes,
    make_log: Callable[[], Log],
    lock: FolderLock | None,
    **options: Any,
) -> Trainer:
    """Build the model and the trainer of a run, and write its settings to the folder.

    make_log: a function that opens the log. It is called after config.toml is written.
    options: further arguments of Trainer.
    """
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
        log=make_log(),
        lock=lock,
        **options,
    )


def introduce(log: Log, run: PreparedRun, task: RunTask) -> None:
    """Log the data, the model and the chosen settings of a new run."""
    settings = run.settings
    for note in run.notes:
        log.event("data", str(note), shown=note)
    count = sum(each.numel() for each in task.model.parameters())
    text = ", ".join(
        filter(
            None,
            (settings.model.name, f"{count:,} parameters", named_sizes(type(task), sizes_of(task.corpus))),
        )
    )
    start = "" if settings.init_from is None else f", starting from {Path(settings.init_from).name}"
    log.event("model", f"{text}{start}", parameters=count)
    if run.plan is not None and run.plan.text:
        log.event("plan", run.plan.text)


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
