"""Train one model for each of several random seeds. For the files of such a run, see seed_folders.py."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace as changed
from pathlib import Path

from rich.console import Console

from regard.files.folder_lock import locked
from regard.runs.prepare_run import PreparedRun, copy_files
from regard.runs.run_folder import made_folder, write_data
from regard.runs.run_manifest import write_config_and_manifest
from regard.runs.run_task import RunTask
from regard.runs.run_trainer import Outcome, build_trainer, introduce
from regard.runs.seed_folders import failures_of, seed_folder, write_failures
from regard.training.distributed import Processes
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log
from regard.training.logs.seed_log import SeedLog
from regard.training.loop import Trainer
from regard.training.seed_trainers import SeedTrainers, SharedClock

__all__ = ["train_seeds"]


def train_seeds(
    task: type[RunTask],
    run: PreparedRun,
    folder: Path,
    device: str,
    *,
    console: Console | None = None,
    change: bool = False,
) -> Outcome:
    """Train one model for each seed of a run, each in a run folder of its own.

    change: whether settings of a resumed run may have changed. If True, seeds that have failed are trained
        again.
    """
    write_data(folder, run.fingerprints)
    write_config_and_manifest(task, folder, run.settings.model_dump())
    if change:
        write_failures(folder, {})
    log, clock = SeedLog(folder / "log.jsonl", console=console), SharedClock()
    with ExitStack() as locks:
        trainers = {
            seed: _trainer(task, run, folder, seed, device, log, clock, locks) for seed in run.settings.seeds
        }

        def on_failure(seed: int, step: int, error: Exception) -> None:
            log.failed(seed, step, error)
            text = str(error).splitlines()[0]
            write_failures(folder, {**failures_of(folder), seed: (step, text)})

        together = SeedTrainers(trainers, clock, log, on_failure)
        first = next(iter(trainers.values()))
        log.best_by, log.counted = first.best, first.task.counted
        log.has_perplexity = first.task.has_perplexity
        with interruptible() as interrupt, log:
            resumed = together.resume({seed: step for seed, (step, _) in failures_of(folder).items()})
            steps = [step for step in resumed.values() if step is not None]
            if steps:
                log.rewind_to_step(min(steps))
                log.event("resumed", f"resumed at step {min(steps):,}")
            elif resumed:
                log.rewind(0)  # remove the log of a process that was killed before its first checkpoint
                assert isinstance(first.task, RunTask)
                introduce(log, run, first.task)
                log.event("seeds", f"{len(trainers)} seeds ({', '.join(map(str, trainers))})")
            log.total = max((each.progress.total or 0 for each in together.trainers.values()), default=None)
            progress = together.run(interrupt)
            stopped = any(not each.ended for seed, each in progress.items() if seed not in together.failed)
            text = f"stopped by {interrupt.cause}" if stopped else "all seeds have ended"
            log.flush()  # log the last step before the event
            log.event("stopped" if stopped else "ended", text)
    failed = {seed: text for seed, (_, text) in failures_of(folder).items()}
    going = [trainer for seed, trainer in trainers.items() if seed not in failed]
    at = (going or list(trainers.values()))[0].progress
    return Outcome(folder, at, interrupt.cause if stopped else "", failed=failed)


def _trainer(
    task: type[RunTask],
    run: PreparedRun,
    folder: Path,
    seed: int,
    device: str,
    log: SeedLog,
    clock: SharedClock,
    locks: ExitStack,
) -> Trainer:
    """Create and lock the run folder of one seed, and build the trainer of its model.

    run: the prepared run of all seeds.
    folder: the run folder of all seeds.
    log: the log of all seeds. The log of this seed passes its losses to it.
    clock: the clock that all trainers share.
    locks: an ExitStack. When it is closed, the lock of the folder is released.
    """
    place = made_folder(seed_folder(folder, seed))
    lock = locks.enter_context(locked(place))
    copy_files(task, folder, place)
    values = {**run.settings.model_dump(), "seed": seed}
    del values["seeds"]
    settings = task.settings_type.model_validate(values)
    training = settings.training
    board = place / "tensorboard" if training.tensorboard else None
    own = changed(run, settings=settings)

    def make_log() -> Log:
        return log.of_seed(seed, place / "log.jsonl", training.log_every, board)

    return build_trainer(task, own, place, device, Processes(), make_log, lock, clock=clock)
