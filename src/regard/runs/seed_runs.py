"""Train one model for each of several random seeds. For the files of such a run, see run_folder.py.

Side by side, each training is a process of `regard train` with a log file of its own (TrainingProcesses).
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from rich.console import Console

from regard.errors import RegardError, message, printable
from regard.files.folder_lock import FolderLock, locked
from regard.runs.prepare_run import Machine, PreparedRun, copy_files
from regard.runs.run_facts import nonfinite_step, scores_table, seed_facts_of, written_summary
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
from regard.runs.stored_runs import outline
from regard.runs.system_report import memory, usable_cores
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.interrupts import Interruption, interruptible
from regard.training.logs.log import Log, resident
from regard.training.progress import NonFinite, Progress, count, duration_text


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


STOPPING = "stopping: the trainings save their checkpoints (press Ctrl-C again to stop at once)"
"""The message that is printed when the first signal arrives; see interruptible()."""

PROGRESS_SECONDS = 20.0
"""Seconds between two lines of progress."""

STOP_SECONDS = 60.0
"""Time that a process has to save a checkpoint after it was stopped."""

STEP = re.compile(r"^step ([\d,]+)/([\d,]+) ", re.M)
"""The line that `regard train` prints: "step 365/1,000  loss ..."."""

NAMED = 3
"""Maximum number of running trainings that are named; the others are only counted."""

ENOUGH = 0.1
"""The time left is shown from this mean share of the running trainings on: the first steps take longer."""

LONG = 3600
"""If more time than this is left, in seconds, a message says how to shorten it."""


class Training(NamedTuple):
    """A training to run.

    name: its name in lines of progress, such as "luong, seed 0".
    log: the file to which its output is appended.
    arguments: the arguments of `regard train`.
    """

    name: str
    log: Path
    arguments: Sequence[str]


class Ended(NamedTuple):
    """A training that has ended.

    status: the exit status of the process.
    seconds: how long it took.
    error: the end of its output; "" if the status is 0.
    """

    training: Training
    status: int
    seconds: float
    error: str = ""


class TrainingProcesses:
    """Runs trainings in processes, several at a time, and reports their progress.

    A context manager: at its end, the processes that still run save a checkpoint and stop.

    jobs: the largest number of processes at the same time.
    say: prints a line.
    interrupt: becomes true when a signal requests a stop. Then the processes save checkpoints and stop.
    until: the time (of time.monotonic) at which they stop; they can be resumed later.
    hint: a line that is printed once if the trainings take longer than an hour.
    """

    def __init__(
        self,
        jobs: int,
        say: Callable[[str], None],
        interrupt: Interruption,
        until: float = math.inf,
        hint: str = "",
    ):
        self.jobs, self.say, self.interrupt, self.until, self.hint = jobs, say, interrupt, until, hint
        self.running: list[tuple[Training, subprocess.Popen[bytes], float]] = []
        self.total = self.done = 0
        self.began = self.reported = time.monotonic()

    def run(self, trainings: Iterable[Training], total: int) -> Iterator[Ended]:
        """Run the trainings, and yield each when it has ended. The next ones start when there is room."""
        self.total, waiting, more = total, iter(trainings), True
        while more or self.running:
            if self.interrupt or time.monotonic() > self.until:
                return
            while more and len(self.running) < self.jobs:
                training = next(waiting, None)
                more = training is not None
                if training is not None:
                    self._start(training)
            time.sleep(0.1)
            for entry in list(self.running):
                training, process, began = entry
                status = process.poll()
                if status is not None:
                    self.running.remove(entry)
                    self.done += 1
                    error = "" if status == 0 else _last_lines(training.log) or f"exit status {status}"
                    yield Ended(training, status, time.monotonic() - began, error)
            self._report()

    def _start(self, training: Training) -> None:
        command = [sys.executable, "-m", "regard", "train", *training.arguments]
        with training.log.open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # A new session: Ctrl-C in the terminal reaches this process only, which then stops the others.
            process = subprocess.Popen(command, start_new_session=True, **streams)
        self.running.append((training, process, time.monotonic()))

    def _report(self) -> None:
        now = time.monotonic()
        if not self.running or now < self.reported + PROGRESS_SECONDS:
            return
        self.reported = now
        running = [(training.name, step_of(training.log)) for training, _, _ in self.running]
        self.say(progress_line(self.done, self.total, running, now - self.began))
        if self.hint and _seconds_left(self.done, self.total, running, now - self.began) > LONG:
            self.say(self.hint)
            self.hint = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _, process, _ in self.running:
            process.terminate()
        for _, process, _ in self.running:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


Running = Sequence[tuple[str, tuple[int, int] | None]]
"""The name and the step of each running training, as returned by step_of()."""


def step_of(log: Path) -> tuple[int, int] | None:
    """Return the last step that the log of a training names, and its number of steps; None before that."""
    found = STEP.findall(_end_of(log))
    return (int(found[-1][0].replace(",", "")), int(found[-1][1].replace(",", ""))) if found else None


def _seconds_left(done: int, total: int, running: Running, seconds: float) -> float:
    """Return the time that the trainings still need; NaN before it can be estimated."""
    finished = done + sum(place[0] / max(place[1], 1) for _, place in running if place is not None)
    enough = finished >= ENOUGH * max(len(running), 1)
    return seconds * (total - finished) / finished if enough else math.nan


def progress_line(done: int, total: int, running: Running, seconds: float) -> str:
    """Return a line about the trainings: how many are finished, the time left, and the running ones.

    done, total: number of finished trainings, and of all trainings.
    seconds: the time since the first training began.

    >>> progress_line(1, 4, [("luong, seed 0", (500, 1000))], 90)
    'trained 1 of 4, about 2 minutes left; running: luong, seed 0, step 500 of 1,000'
    >>> progress_line(0, 4, [("luong, seed 0", (1, 1000))], 9)
    'trained 0 of 4; running: luong, seed 0, step 1 of 1,000'
    """
    seconds = _seconds_left(done, total, running, seconds)
    left = "" if math.isnan(seconds) else f", about {duration_text(seconds)} left"
    names = [
        f"{name}, starting" if place is None else f"{name}, step {place[0]:,} of {place[1]:,}"
        for name, place in running[:NAMED]
    ]
    more = f"; and {len(running) - NAMED} more" if len(running) > NAMED else ""
    return f"trained {done} of {total}{left}; running: {'; '.join(names)}{more}"


def _end_of(log: Path) -> str:
    """Return the last 4,000 bytes of a log as text; "" if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - 4000, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_lines(log: Path, count: int = 3) -> str:
    """Return the last lines of a log, which contain the error message."""
    kept = [printable(line.strip()) for line in _end_of(log).splitlines() if line.strip()]
    start = next((at for at in range(len(kept) - 1, -1, -1) if kept[at].startswith("regard")), len(kept) - 1)
    return " ".join(kept[max(start, 0) :][:count])
