"""Train recipes in run folders, several at a time, and keep the result of each run in its folder."""

from __future__ import annotations

import argparse
import datetime
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from benchmarks.measure import RESULTS, environment
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.task_table import find_task
from regard.training.progress import Progress
from regard.training.settings import merged, override, read_toml

__all__ = ["Job", "add_options", "finish", "job_record", "jobs_at_once", "recipe_settings", "train_job"]

RECIPES = Path(__file__).parents[1] / "recipes"
MEASURED = "measured.json"
"""The file in a run folder with the result of the run."""


@dataclass(frozen=True)
class Job:
    """A run of a recipe. variant: names the changes of the recipe; "" without changes.

    changes: settings that replace those of the recipe. data: folder of the data. runs: folder of the run
    folders. threads: number of CPU threads. measured: only read the result of an earlier call.
    """

    recipe: str
    seed: int
    data: Path
    runs: Path
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    threads: int = 1
    measured: bool = False

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return "-".join(filter(None, (self.recipe, self.variant.replace(" ", "-"), str(self.seed))))

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def settings(self) -> dict[str, Any]:
        return {**merged(recipe_settings(self.recipe, self.data), dict(self.changes)), "seed": self.seed}


def recipe_settings(recipe: str, data: Path) -> dict[str, Any]:
    """Return the settings of a recipe, with its files in another folder: data/x becomes DATA/x."""
    settings = read_toml(RECIPES / f"{recipe}.toml")
    for name in ("train_file", "valid_file", "images"):
        if name in settings["data"]:
            paths = settings["data"][name]
            settings["data"][name] = [str(data / Path(path).relative_to("data")) for path in paths]
    return settings


def train_job(job: Job) -> Progress:
    """Train a job, or resume it; its output goes to a log file beside the run folder, line by line."""
    settings = job.settings
    with open(job.runs / f"{job.name}.log", "a", buffering=1) as log:
        console = Console(file=log, width=110)
        machine = Machine(job.device, job.threads)
        outcome = train_run(
            find_task(settings["task"]), settings, job.folder, resume=True, machine=machine, console=console
        )
    if outcome.interrupted:
        raise RuntimeError(f"{job.name}: stopped by {outcome.interrupted}")
    return outcome.progress


def job_record(job: Job, model: nn.Module, progress: Progress) -> dict[str, Any]:
    """Return what the result of every job contains: the job, its model, its training and the machine."""
    gpu = torch.cuda.is_available() and job.device != "cpu"
    return {
        "recipe": job.recipe,
        "changes": dict(job.changes),
        "seed": job.seed,
        "parameters": sum(each.numel() for each in model.parameters()),
        "steps": progress.step,
        "best_step": progress.best_step,
        "seconds": round(progress.seconds, 1),
        "machine": {**environment(), **({"gpu": torch.cuda.get_device_name()} if gpu else {})},
    }


def _kept(measure: Callable[[Job], dict[str, Any]], job: Job) -> dict[str, Any]:
    """Return the result in the run folder; measure it first if there is none."""
    path = job.folder / MEASURED
    if path.exists():
        return json.loads(path.read_text())
    torch.set_num_threads(job.threads)
    result = measure(job)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return result


def jobs_at_once(
    measure: Callable[[Job], dict[str, Any]], jobs: Sequence[Job], at_once: int
) -> list[dict[str, Any]]:
    """Measure jobs in new processes, at most `at_once` at a time; print each result. Failed jobs are printed.

    measure: a function at the top level of a module. Results are in the order of the jobs.
    """
    for job in jobs:
        job.runs.mkdir(parents=True, exist_ok=True)
    results: dict[int, dict[str, Any]] = {}
    # Each run has a new process, so that its seed and timing do not depend on earlier runs.
    with ProcessPoolExecutor(at_once, get_context("spawn"), max_tasks_per_child=1) as pool:
        numbers: dict[Future[dict[str, Any]], int] = {}
        for number, job in enumerate(jobs):
            if not job.measured or (job.folder / MEASURED).exists():
                numbers[pool.submit(_kept, measure, job)] = number
        for future in as_completed(numbers):
            number = numbers[future]
            try:
                results[number] = future.result()
            except Exception:
                print(f"{jobs[number].name} FAILED\n{traceback.format_exc()}", flush=True)
                continue
            print(f"{len(results)} of {len(numbers)}: {json.dumps(results[number])}", flush=True)
    return [results[number] for number in sorted(results)]


def add_options(parser: argparse.ArgumentParser, recipes: Sequence[str], at_once: int) -> None:
    """Add the options that the benchmarks of recipes share."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the data, data/ in the recipes")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--only", nargs="+", choices=recipes, default=[*recipes], help="recipes to train")
    parser.add_argument("--at-once", type=int, default=at_once, help="number of runs at a time")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads of a run")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings that replace those of the recipes",
    )
    parser.add_argument("--measured", action="store_true", help="only report existing results, train nothing")
    parser.add_argument("--notes", default="", help="remarks for the table")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")


def job_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of add_options() as arguments of Job."""
    names = ("data", "runs", "device", "threads", "measured")
    options = {name: getattr(arguments, name) for name in names}
    return {**options, "changes": override(arguments.set)}


def finish(name: str, text: str, results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print the table, and write it and the results to dated files, unless --no-write is given."""
    print("\n" + text)
    if arguments.no_write:
        return
    stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-{name}"
    record = {"notes": arguments.notes, "runs": results}
    stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"Wrote {stem.name}.json and .md")


def measured_on(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence with the machines of the results."""
    machines = {", ".join(f"{name} {value}" for name, value in each["machine"].items()) for each in results}
    return f"Measured on: {'; '.join(sorted(machines))}."
