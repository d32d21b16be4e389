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
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.compare.comparison_options import Options, fingerprints
from regard.compare.study import PlannedRun
from regard.compare.training_progress import progress_line, step_of
from regard.errors import RegardError, printable
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited
from regard.runs.devices import choose_device
from regard.runs.run_folder import made_folder
from regard.training.interrupts import Interruption, interruptible
from regard.training.settings_toml import to_toml

__all__ = ["RunCache", "TrainedRun", "digest", "key_of"]

MEASURED = 1
"""Version of the measurements. Increase it to measure all runs again."""

PROGRESS_SECONDS = 20.0
"""Seconds between two lines of progress."""

STOP_SECONDS = 60.0
"""Time that a training process has to save a checkpoint after the comparison was stopped."""


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
    hashes = fingerprints(run.settings.get("data", {}))
    return digest([_without_paths(run.settings, hashes), _version(), device.partition(":")[0]])


def _version() -> str:
    try:
        return importlib.metadata.version("regard")
    except importlib.metadata.PackageNotFoundError:  # running from source
        return "source"


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
        about = _read(place / "finished.json")
        seconds = None if about is None else about.get("seconds")
        if not isinstance(seconds, int | float):
            return None
        return TrainedRun(run.label, run.seed, place / "run", float(seconds))

    def failure(self, run: PlannedRun) -> str:
        """Return the error message of a run that has failed; "" for other runs."""
        about = _read(self.place(run) / "failed.json")
        return "" if about is None else str(about.get("error", "unknown error"))

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

    def measured(self, run: TrainedRun | None, name: str, parameters: Any, measure: Callable[[], Any]) -> Any:
        """Return a measurement as plain data. It is measured once, and then read from the cache.

        run: the trained run; None for a measurement that needs no training.
        name: the name of the measurement.
        parameters: everything else that the result depends on.
        measure: a function that returns the result, as data that JSON can represent.
        """
        folder = self.folder if run is None else run.folder.parent
        path = folder / f"{name}-{digest([parameters, MEASURED, self.device])}.json"
        known = _read(path)
        if known is not None and "result" in known:
            return known["result"]
        result = measure()
        _write(path, {"parameters": parameters, "result": result})
        return json.loads(json.dumps(result))


class _Pool:
    """Several training processes at a time; each is `regard train` with a recipe."""

    def __init__(self, cache: RunCache, interrupt: Interruption, until: float):
        self.cache, self.interrupt, self.until = cache, interrupt, until
        self.waiting: list[PlannedRun] = []
        self.running: dict[Path, tuple[PlannedRun, subprocess.Popen[bytes], float]] = {}
        self.total = self.done = 0
        self.began = self.reported = time.monotonic()

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


def _last_lines(path: Path, count: int = 3) -> str:
    """Return the last lines of a log, which contain the error message."""
    try:
        lines = path.read_bytes()[-4000:].decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    kept = [printable(line.strip()) for line in lines if line.strip()]
    start = next((at for at in range(len(kept) - 1, -1, -1) if kept[at].startswith("regard")), len(kept) - 1)
    return " ".join(kept[max(start, 0) :][:count])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = parse_json(read_limited(path, "json"))
    except (OSError, ValueError, RegardError):
        return None
    return value if isinstance(value, dict) else None


def _write(path: Path, value: Any) -> None:
    made_folder(path.parent)
    replace(path, (json.dumps(value, ensure_ascii=False) + "\n").encode())
