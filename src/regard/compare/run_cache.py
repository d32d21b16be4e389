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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from regard.compare.comparison_options import Options
from regard.compare.study import PlannedRun
from regard.errors import DataError, RegardError, message, shown
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited
from regard.runs.devices import choose_device
from regard.runs.run_folder import made_folder
from regard.runs.training_processes import STOPPING, Training, TrainingProcesses
from regard.tasks.translation.settings import PATHS
from regard.training.interrupts import interruptible
from regard.training.settings_toml import to_toml

__all__ = ["RunCache", "TrainedRun", "digest", "key_of"]

Measured = TypeVar("Measured")

MEASURED = 1
"""Version of the measurements. Increase it to measure all runs again."""

SHORTER = "to shorten it: --quick, --study NAME, --models NAME, or --stop-after MINUTES"


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
        hint = "" if self.options.quick else SHORTER
        with (
            interruptible(STOPPING) as interrupt,
            TrainingProcesses(self.options.jobs, self.say, interrupt, until, hint) as processes,
        ):
            for end in processes.run(map(self._training, runs), len(runs)):
                name = f"{processes.done}/{processes.total}: {end.training.name}"
                if end.error:
                    _write(end.training.log.with_name("failed.json"), {"error": end.error})
                    self.say(f"failed {name}: {end.error}")
                else:
                    _write(end.training.log.with_name("finished.json"), {"seconds": end.seconds})
                    self.say(f"trained {name} ({end.seconds:.0f} s)")
        self.interrupted = interrupt.cause

    def _training(self, run: PlannedRun) -> Training:
        """Write the recipe of a run, and return its training."""
        place, options = made_folder(self.place(run)), self.options
        (place / "failed.json").unlink(missing_ok=True)
        replace(place / "recipe.toml", to_toml(run.settings).encode())
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        files = ["--recipe", str(place / "recipe.toml"), "--output", str(place / "run")]
        arguments = [*files, "--resume", "--device", options.device, *threads]
        return Training(f"{run.label}, seed {run.seed}", place / "log.txt", arguments)

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
