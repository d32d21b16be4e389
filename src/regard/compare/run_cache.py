"""The training runs of a comparison, in a cache folder: each run is trained once and can be resumed.

A run has the folder MODEL-SEED-KEY of the cache. KEY is a hash of its settings, of the content of its data
files, of the version of Regard and of the kind of device. The folder contains:

    recipe.toml      the settings of the run
    run/             the run folder, as `regard train` writes it
    log.txt          what the training printed
    finished.json    the duration, after the training has finished
    failed.json      the error, if the training has failed
    NAME-HASH.json   a measurement of the trained model
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from regard.compare.comparison_options import Options
from regard.compare.study import PlannedRun
from regard.errors import DataError, RegardError, message, printable, shown
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited
from regard.runs.devices import choose_device
from regard.runs.estimate import duration_text
from regard.runs.run_folder import made_folder
from regard.tasks.translation.settings import PATHS
from regard.training.interrupts import Interruption, interruptible
from regard.training.settings_toml import to_toml

__all__ = ["RunCache", "TrainedRun", "digest", "key_of", "progress_line", "step_of"]

Measured = TypeVar("Measured")

MEASURED = 1
"""Version of the measurements. Increase it to measure all runs again."""

PROGRESS_SECONDS = 20.0
"""Seconds between two lines of progress."""

STOP_SECONDS = 60.0
"""Time that a training process has to save a checkpoint after the comparison was stopped."""

STEP = re.compile(r"^step ([\d,]+)/([\d,]+) ", re.M)
"""The line that `regard train` prints: "step 365/1,000  loss ..."."""

NAMED = 3
"""Maximum number of running training runs that are named; the others are only counted."""

ENOUGH = 0.1
"""The time left is shown from this mean share of the running trainings on: the first steps take longer."""

LONG = 3600
"""If more time than this is left, in seconds, a message says how to shorten it."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished training run of a comparison.

    label, seed: those of the planned run.
    folder: the run folder, for regard.load().
    seconds: how long the training took.
    """

    label: str
    seed: int
    folder: Path
    seconds: float


def key_of(run: PlannedRun, device: str) -> str:
    """Return the hash that names the folder of a run: of its settings, data, version and kind of device.

    Files are named by their content, so a copy of the data gives the same key.
    """
    data = run.settings.get("data", {})
    paths = [str(path) for name in (*PATHS, "alignments") for path in data.get(name) or ()]
    hashes = {path: _hash_of_file(path) for path in paths}
    try:
        version = importlib.metadata.version("regard")
    except importlib.metadata.PackageNotFoundError:  # running from source
        version = "source"
    return digest([_without_paths(run.settings, hashes), version, device.partition(":")[0]])


@cache
def _hash_of_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise DataError(message(shown(path), f"cannot be read: {error.strerror}")) from None


def _without_paths(value: Any, hashes: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_paths(inner, hashes) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(inner, hashes) for inner in value]
    return hashes.get(value, value) if isinstance(value, str) else value


def digest(parts: Any) -> str:
    """Return a short hash of plain data."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class RunCache:
    """Trains the runs of a comparison, and stores their measurements.

    folder: the cache folder.
    options: the options of the comparison.
    say: prints a line of progress.
    """

    def __init__(self, folder: Path, options: Options, say: Callable[[str], None]):
        self.folder, self.options, self.say = folder, options, say
        self.device = choose_device(options.device)
        self.interrupted = ""

    def place(self, run: PlannedRun) -> Path:
        """Return the folder of a run in the cache."""
        name = str(run.settings["model"].get("name", "model"))
        return self.folder / f"{name}-{run.seed}-{key_of(run, self.device)}"

    def finished(self, run: PlannedRun) -> TrainedRun | None:
        """Return a run if its training has finished; otherwise None."""
        place = self.place(run)
        seconds = _read(place / "finished.json").get("seconds")
        if not isinstance(seconds, int | float):
            return None
        return TrainedRun(run.label, run.seed, place / "run", float(seconds))

    def failure(self, run: PlannedRun) -> str:
        """Return the error message of a run that has failed; "" for other runs."""
        return str(_read(self.place(run) / "failed.json").get("error", ""))

    def missing(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """Return the runs that are not finished, each once."""
        distinct = {self.place(run): run for run in runs}
        return [run for run in distinct.values() if self.finished(run) is None]

    def train(self, runs: Sequence[PlannedRun], until: float = math.inf) -> None:
        """Train runs that are not finished. A run that fails is reported, and the others go on.

        until: the time (of time.monotonic) at which training stops; it can be resumed later.

        Ctrl-C, SIGTERM and SIGHUP save checkpoints and stop; `interrupted` then names the signal.
        """
        if not runs:
            return
        notice = "stopping: the trainings save their checkpoints (press Ctrl-C again to stop at once)"
        with interruptible(notice) as interrupt:
            _Pool(self, interrupt, until).run(runs)
        self.interrupted = interrupt.cause

    def measured(
        self, run: TrainedRun | None, name: str, parameters: Any, measure: Callable[[], Measured]
    ) -> Measured:
        """Return a measurement as plain data. It is measured once, and then read from the cache.

        run: the trained run; None for a measurement that needs no training.
        name: the name of the measurement.
        parameters: everything else that the result depends on.
        measure: a function that returns the result, as data that JSON can represent.
        """
        folder = self.folder if run is None else run.folder.parent
        path = folder / f"{name}-{digest([parameters, MEASURED, self.device])}.json"
        known = _read(path)
        result = known["result"] if "result" in known else measure()
        if "result" not in known:
            _write(path, {"parameters": parameters, "result": result})
        return cast(Measured, json.loads(json.dumps(result)))


class _Pool:
    """Several training processes at a time; each is `regard train` with a recipe."""

    def __init__(self, runs_cache: RunCache, interrupt: Interruption, until: float):
        self.cache, self.interrupt, self.until = runs_cache, interrupt, until
        self.waiting: list[PlannedRun] = []
        self.running: dict[Path, tuple[PlannedRun, subprocess.Popen[bytes], float]] = {}
        self.total = self.done = 0
        self.began = self.reported = time.monotonic()
        self.hinted = runs_cache.options.quick

    def run(self, runs: Sequence[PlannedRun]) -> None:
        self.waiting, self.total = list(runs), len(runs)
        try:
            while self.waiting or self.running:
                if self.interrupt or time.monotonic() > self.until:
                    return
                while self.waiting and len(self.running) < self.cache.options.jobs:
                    self._start(self.waiting.pop(0))
                time.sleep(0.1)
                self._collect()
                self._report()
        finally:
            self._stop()

    def _start(self, run: PlannedRun) -> None:
        place = made_folder(self.cache.place(run))
        (place / "failed.json").unlink(missing_ok=True)
        replace(place / "recipe.toml", to_toml(run.settings).encode())
        options = self.cache.options
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        command = [sys.executable, "-m", "regard", "train", "--recipe", str(place / "recipe.toml")]
        command += ["--output", str(place / "run"), "--resume", "--device", options.device, *threads]
        with (place / "log.txt").open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # A new session: Ctrl-C in the terminal reaches this process only, which then stops the others.
            process = subprocess.Popen(command, start_new_session=True, **streams)
        self.running[place] = run, process, time.monotonic()

    def _report(self) -> None:
        now = time.monotonic()
        if not self.running or now < self.reported + PROGRESS_SECONDS:
            return
        self.reported = now
        running = [
            (f"{run.label}, seed {run.seed}", step_of(place / "log.txt"))
            for place, (run, _, _) in self.running.items()
        ]
        self.cache.say(progress_line(self.done, self.total, running, now - self.began))
        if not self.hinted and _seconds_left(self.done, self.total, running, now - self.began) > LONG:
            self.hinted = True
            self.cache.say("to shorten it: --quick, --study NAME, --models NAME, or --stop-after MINUTES")

    def _collect(self) -> None:
        for place, (run, process, began) in list(self.running.items()):
            status = process.poll()
            if status is None:
                continue
            del self.running[place]
            self.done += 1
            seconds = time.monotonic() - began
            name = f"{self.done}/{self.total}: {run.label}, seed {run.seed}"
            if status == 0:
                _write(place / "finished.json", {"seconds": seconds})
                self.cache.say(f"trained {name} ({seconds:.0f} s)")
                continue
            error = _last_lines(place / "log.txt") or f"exit status {status}"
            _write(place / "failed.json", {"error": error})
            self.cache.say(f"failed {name}: {error}")

    def _stop(self) -> None:
        for _, process, _ in self.running.values():
            process.terminate()
        for _, process, _ in self.running.values():
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


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} if the file is missing or damaged."""
    try:
        value = parse_json(read_limited(path, "json"))
    except (OSError, ValueError, RegardError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, value: Any) -> None:
    made_folder(path.parent)
    replace(path, (json.dumps(value, ensure_ascii=False) + "\n").encode())
