"""Trainings side by side: each is a process of `regard train` with a log file of its own."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from regard.errors import printable
from regard.runs.estimate import duration_text
from regard.training.interrupts import Interruption

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
