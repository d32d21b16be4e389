"""Train one model for each of several random seeds. For the files of such a run, see run_folder.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from regard.errors import RegardError, message
from regard.files.folder_lock import FolderLock, locked
from regard.runs.prepare_run import Machine, PreparedRun, copy_files
from regard.runs.run_facts import nonfinite_step
from regard.runs.run_folder import (
    failures_of,
    is_run,
    made_folder,
    seed_folder,
    write_config_and_manifest,
    write_data,
    write_failures,
)
from regard.runs.run_task import RunTask, sizes_of
from regard.runs.seed_scores import scores_table, seed_facts_of, written_summary
from regard.runs.stored_runs import outline
from regard.runs.system_report import memory, usable_cores
from regard.runs.training_processes import STOPPING, Training, TrainingProcesses
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log, resident
from regard.training.progress import NonFinite, Progress, count


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


SHORT, ROOM = 100, 1 << 30
"""SHORT: trainings of fewer steps are not divided among processes. ROOM: bytes that a process needs in any
case."""


def train_seeds(
    task: type[RunTask],
    run: PreparedRun,
    folder: Path,
    train: Callable[[PreparedRun, Path, FolderLock | None], Outcome],
    *,
    jobs: Jobs | None = None,
    console: Console | None = None,
    change: bool = False,
) -> Outcome:
    """Train the seeds of a run. Each is an ordinary run in a folder of its own.

    A seed whose loss becomes NaN or infinite fails, and the next one is trained. At the end, the mean and the
    deviation of the scores are logged. When training is stopped, the seeds that have not begun are trained
    after the run is resumed.

    train: trains one seed in its run folder, which is locked.
    jobs: how many seeds are trained side by side, in processes. Default: one after another, in this process.
    change: whether settings of a resumed run may have changed. If True, seeds that have failed are trained
        again.
    """
    write_data(folder, run.fingerprints)
    write_config_and_manifest(task, folder, run.settings.model_dump())
    if change:
        write_failures(folder, {})
    log, seeds = Log(folder / "log.jsonl", console=console), list(run.settings.seeds)
    log.rewind(0)  # each seed has a log of its own, which is continued
    waiting = []
    for seed in seeds:
        own, done = seed_folder(folder, seed), seed in failures_of(folder)
        if not (change or done) and is_run(own):  # a seed that has ended is not loaded to find this out
            checkpoint = Checkpoints(own).latest()
            done = checkpoint is not None and bool(Progress.read(checkpoint.state, str(own)).ended)
        waiting += [] if done else [seed]

    def fail(seed: int, step: int, text: str) -> None:
        write_failures(folder, {**failures_of(folder), seed: (step, text)})
        log.event("failed", f"seed {seed} has failed: {text}", seed=seed, step=step)

    with interruptible(*((STOPPING,) if jobs else ())) as interrupt:
        if jobs is not None and waiting:
            plans = ((seed, _prepared(task, run, folder, seed)) for seed in waiting)
            trainings = (_training(task, own, folder, seed, jobs) for seed, own in plans)
            log.event("seeds", f"{count(len(waiting), 'seed')}, {jobs.processes} at a time in processes")
            with TrainingProcesses(
                jobs.processes, lambda text: log.event("seeds", text), interrupt
            ) as processes:
                for end in processes.run(trainings, len(waiting)):
                    seed = int(end.training.name.removeprefix("seed "))
                    step = nonfinite_step(seed_folder(folder, seed)) if end.status else None
                    if step is not None:
                        fail(seed, *step)
                    elif end.status:
                        raise RegardError(message(end.training.name, end.error))
                    else:
                        log.event("seed", f"seed {seed} has ended ({end.seconds:.0f} s)", seed=seed)
        for seed in () if jobs else waiting:
            if interrupt:
                break
            log.event("seed", f"seed {seed} ({seeds.index(seed) + 1} of {len(seeds)})", seed=seed)
            try:
                with locked(made_folder(seed_folder(folder, seed))) as lock:
                    last = train(_prepared(task, run, folder, seed), seed_folder(folder, seed), lock)
            except NonFinite as error:
                fail(seed, error.step, str(error).splitlines()[0])
            else:
                interrupt.cause = interrupt.cause or last.interrupted
    failed = {seed: text for seed, (_, text) in failures_of(folder).items()}
    facts = seed_facts_of(task, folder)
    if facts is not None and facts.scores:
        log.event(
            "scores",
            f"scores of {count(len(facts.scores), 'seed')}",
            shown=scores_table(facts.scores),
            **written_summary(facts.summary),
            seeds={str(seed): scores for seed, scores in facts.scores.items()},
        )
    log.event(
        *(("stopped", f"stopped by {interrupt.cause}") if interrupt else ("ended", "all seeds have ended"))
    )
    ended = [] if facts is None else [each.progress for each in facts.runs.values() if each.progress]
    return Outcome(folder, ended[-1] if ended else Progress(), interrupt.cause, failed=failed)


def _prepared(task: type[RunTask], run: PreparedRun, folder: Path, seed: int) -> PreparedRun:
    """Create the run folder of one seed with the tokenizers, and return its run, with a single seed."""
    copy_files(task, folder, made_folder(seed_folder(folder, seed)))
    values = {**run.settings.model_dump(), "seed": seed}
    del values["seeds"]
    return changed(run, settings=task.settings_type.model_validate(values))


class Jobs(NamedTuple):
    """How seeds are trained side by side.

    processes: the largest number of processes at the same time.
    threads: the number of CPU threads of each.
    device: the device of each.
    """

    processes: int
    threads: int
    device: str


def seed_jobs(task: type[RunTask], run: PreparedRun, machine: Machine, device: str) -> Jobs | None:
    """Return how many seeds to train side by side, or None to train them one after another.

    machine.jobs: the largest number. None: as many as the cores of the CPU and the free memory allow; one on
        other devices, and for trainings of fewer than SHORT steps, because starting a process takes seconds.

    A process is expected to need the memory of this one, and that of its weights and activations.
    """
    seeds, cores = len(run.settings.seeds), usable_cores()
    limited = "OMP_NUM_THREADS" in os.environ
    threads = machine.threads or (torch.get_num_threads() if limited else max(cores // seeds, 1))
    most = machine.jobs
    if most is None:
        steps = run.settings.training.steps
        if device != "cpu" or (steps is not None and steps < SHORT):
            return None
        model = outline(task, run.settings.model, sizes_of(run.corpus), Path())
        needed = ROOM + 32 * sum(each.numel() for each in model.parameters())
        needed += resident() or 0
        free = memory()[1]
        most = min(cores // threads, free // needed if free else cores)
    return Jobs(min(most, seeds), threads, device) if min(most, seeds) > 1 else None


def _training(task: type[RunTask], run: PreparedRun, folder: Path, seed: int, jobs: Jobs) -> Training:
    """Write the settings of a seed to its run folder, and return its training, which resumes this run."""
    own = seed_folder(folder, seed)
    with locked(own):
        write_data(own, run.fingerprints)
        write_config_and_manifest(task, own, run.settings.model_dump())
    arguments = ["--output", str(own), "--resume", "--device", jobs.device]
    if ":" in run.settings.task:  # a task of the user is never imported because a file names it
        arguments += ["--task", run.settings.task]
    if not Checkpoints(own).all():  # a resumed run keeps its number of threads
        arguments += ["--threads", str(jobs.threads)]
    return Training(f"seed {seed}", folder / f"seed-{seed}.log", arguments)
