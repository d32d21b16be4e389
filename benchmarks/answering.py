"""Benchmark of memory networks on the twenty bAbI tasks, over ten seeds, beside the published errors.

python -m benchmarks.answering --data data --only babi-joint --device cuda     one model for all tasks
python -m benchmarks.answering --data data --only babi-task --tasks 1 2 3      one model for each task
python -m benchmarks.answering --data data --only babi-supervised              trained with supporting facts
python -m benchmarks.answering --data data --folder en-10k                     10,000 questions per task
python -m benchmarks.answering --data data --measured                          a table of finished runs

DATA/babi/en and DATA/babi/en-10k have the files of bAbI 1.2: qa1_single-supporting-fact_train.txt.gz etc.
A task without a training file is left out. As in the paper, the run with the lowest training loss is
reported. A run with a measured.json in its folder is not measured again; an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn.functional import cross_entropy

import regard
from benchmarks.measure import environment
from benchmarks.published_babi import PUBLISHED, PUBLISHED_AS
from benchmarks.recipe_runs import MEASURED, add_options, finish, measured_on, recipe_settings
from regard.data.batch import NO_LABEL
from regard.data.story_text import EncodedStories, Stories, encode_stories, read_stories, task_of_file
from regard.evaluation.story_answerer import StoryReport, story_report, task_order
from regard.models.supervised_memory_network import SupervisedMemoryNetwork
from regard.runs.prepare_run import Machine
from regard.runs.run_folder import failures_of
from regard.runs.train_run import train_run
from regard.tasks.answering import AnsweringTask
from regard.tasks.answering.task import AnsweringRun, read_story_split
from regard.training.settings import merged, override

__all__ = ["RECIPES", "StoryJob", "best_seed", "jobs_of", "measure", "table"]

RECIPES = ("babi-joint", "babi-task", "babi-supervised")
TASKS = range(1, 21)
ABOUT = """\
Test error in per cent. best: the seed with the lowest training loss, as in the papers; mean: over all seeds ±
standard deviation (n - 1). The last checkpoint of each seed is evaluated, on the 1,000 test questions of each
task. The settings were chosen by the error on held-out training stories, not on the test set. An answer of
several words (qa8, qa19) is one class. A task is failed if its error is above 5 per cent.
"""


@dataclass(frozen=True)
class StoryJob:
    """A run of a recipe with several seeds. files: training files; task: "" for joint training."""

    recipe: str
    files: tuple[str, ...]
    runs: Path
    folder_name: str = "en"
    task: str = ""
    seeds: int = 10
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    threads: int = 1

    @property
    def folder(self) -> Path:
        return self.runs / "-".join(filter(None, (self.recipe, self.folder_name, self.task)))

    @property
    def settings(self) -> dict[str, Any]:
        settings = recipe_settings(self.recipe, Path())
        settings = merged(settings, dict(self.changes))
        settings["data"]["train_file"] = list(self.files)
        del settings["seed"]
        return {**settings, "seeds": self.seeds}


def training_files(folder: Path, tasks: Sequence[int]) -> list[Path]:
    """Return the training file of each task; a task without a file is reported and left out."""
    found = []
    for task in tasks:
        paths = sorted(folder.glob(f"qa{task}_*_train.txt*"))
        if not paths:
            print(f"qa{task}: there is no training file in {folder.name}; the task is left out")
        found += paths[:1]
    return found


def jobs_of(arguments: argparse.Namespace) -> list[StoryJob]:
    """Return the jobs of the command line: one for joint training, one per task for babi-task."""
    files = training_files(arguments.data / "babi" / arguments.folder, arguments.tasks)
    options = {name: getattr(arguments, name) for name in ("runs", "device", "threads", "seeds")}
    options |= {"changes": override(arguments.set), "folder_name": arguments.folder}
    jobs = []
    for recipe in arguments.only:
        if recipe == "babi-task":
            jobs += [StoryJob(recipe, (str(path),), task=task_of_file(path), **options) for path in files]
        else:
            jobs.append(StoryJob(recipe, tuple(map(str, files)), **options))
    return jobs


def measure(job: StoryJob) -> dict[str, Any]:
    """Train all seeds of a job, or resume them; evaluate the last checkpoint of each on the test files."""
    job.runs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(job.runs / f"{job.folder.name}.log", "a", buffering=1) as log:
        outcome = train_run(
            AnsweringTask,
            job.settings,
            job.folder,
            resume=job.folder.exists(),
            machine=Machine(job.device, job.threads),
            console=Console(file=log, width=110),
        )
    if outcome.interrupted:
        raise RuntimeError(f"{job.folder.name}: stopped by {outcome.interrupted}")
    seconds = time.monotonic() - began
    failed = failures_of(job.folder)
    chosen = [seed for seed in range(job.seeds) if seed not in failed]
    runs = (regard.load(job.folder, seed=seed, checkpoint="latest", device=job.device) for seed in chosen)
    tests = read_stories([path.replace("_train", "_test") for path in job.files])
    seeds = {str(seed): each for seed, each in zip(chosen, evaluated(runs, tests), strict=True)}
    gpu = torch.cuda.is_available() and job.device != "cpu"
    return {
        "recipe": job.recipe,
        "folder": job.folder_name,
        "task": job.task,
        "changes": dict(job.changes),
        "seconds": round(seconds, 1),
        "steps": outcome.progress.step,
        "failed": {str(seed): text for seed, (_, text) in failed.items()},
        "seeds": seeds,
        "machine": {**environment(), **({"gpu": torch.cuda.get_device_name()} if gpu else {})},
    }


def evaluated(runs: Iterable[AnsweringRun], tests: Stories) -> Iterator[dict[str, Any]]:
    """Yield the losses and errors of the runs of several seeds. The stories are read and encoded once."""
    parts: list[tuple[Stories, EncodedStories]] = []
    for run in runs:
        device = next(run.model.parameters()).device
        if not parts:
            data = run.settings.data
            split = read_story_split(data)
            for part in (tests, split.valid, split.train):
                encoded = encode_stories(part.questions, run.words, split.tasks, data.max_sentences)
                parts.append((part, encoded.to(device)))
        (report, _), (valid, _), (_, loss) = (errors_and_loss(run, *part) for part in parts)
        yield {
            "training_loss": round(loss, 6),
            "validation_error": round(100 * valid.error, 3),
            "error": round(100 * report.error, 3),
            "tasks": {each.task: round(100 * each.error, 2) for each in report.tasks},
        }


@torch.no_grad()
def errors_and_loss(
    run: AnsweringRun, stories: Stories, encoded: EncodedStories
) -> tuple[StoryReport, float]:
    """Return the errors of each task, and the mean loss of the questions with a known answer (eval mode)."""
    total, right = 0.0, list[bool]()
    run.model.eval()
    for rows in torch.arange(len(encoded)).split(1000):
        batch = encoded.batch(rows)
        logits = run.model(batch)
        right += (logits.argmax(-1) == batch.answers).tolist()
        known = batch.answers != NO_LABEL
        if isinstance(run.model, SupervisedMemoryNetwork):
            total += float(sum(run.model.ranking_loss(batch.select(known.nonzero().squeeze(1)))))
        else:
            total += float(cross_entropy(logits, batch.answers, reduction="sum", ignore_index=NO_LABEL))
    count = int((encoded.answers != NO_LABEL).sum())
    return story_report([each.task for each in stories], right), total / max(count, 1)


def best_seed(seeds: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the seed with the lowest training loss.

    >>> best_seed({"0": {"training_loss": 0.3}, "1": {"training_loss": 0.2}})
    '1'
    """
    return min(seeds, key=lambda seed: seeds[seed]["training_loss"])


def table(results: Sequence[Mapping[str, Any]], notes: str = "") -> str:
    """Return a Markdown table for each recipe and folder, with the published error of each task beside."""
    parts, groups = [ABOUT], dict[tuple[str, str], list[Mapping[str, Any]]]()
    for each in results:
        groups.setdefault((each["recipe"], each["folder"]), []).append(each)
    for (recipe, folder), group in sorted(groups.items()):
        parts.append(_group_table(recipe, folder, group))
    remarks = [notes.strip(), ""] if notes else []
    return "\n".join([*parts, *remarks, measured_on(results), ""])


def _group_table(recipe: str, folder: str, group: Sequence[Mapping[str, Any]]) -> str:
    best, every = dict[str, float](), dict[str, list[float]]()
    for result in (each for each in group if each["seeds"]):
        best |= result["seeds"][best_seed(result["seeds"])]["tasks"]
        for seed in result["seeds"].values():
            for task, error in seed["tasks"].items():
                every.setdefault(task, []).append(error)
    published = PUBLISHED[recipe] if folder == "en" else {}
    head = PUBLISHED_AS[recipe] if folder == "en" else "published"
    seconds = sum(each["seconds"] for each in group)
    counts = sorted({len(each["seeds"]) for each in group})
    rows = [
        f"{recipe}, bAbI {folder}: {'/'.join(map(str, counts))} seeds, {seconds:,.0f} s in all",
        "",
        f"| task | best | mean | {head} |",
        "| --- | --- | --- | --- |",
    ]
    for task in sorted(best, key=task_order):
        number = task.partition("_")[0]
        rows.append(
            f"| {task} | {best[task]:.1f} | {spread(every[task])} | {_shown(published.get(number))} |"
        )
    known = [published[task.partition("_")[0]] for task in best if task.partition("_")[0] in published]
    failed = sum(error > 5 for error in best.values())
    means = [sum(values) / len(values) for values in zip(*every.values(), strict=False)]
    whole = statistics.mean(known) if len(known) == len(best) else None
    rows += [
        f"| mean error | **{statistics.mean(best.values()):.1f}** | {spread(means)} | {_shown(whole)} |",
        f"| failed tasks | {failed} | | {sum(error > 5 for error in known) if known else ''} |",
        "",
    ]
    return "\n".join(rows)


def spread(numbers: Sequence[float]) -> str:
    """Return mean ± standard deviation of a sample.

    >>> spread([10.0, 12.0]), spread([3.0])
    ('11.0 ± 1.4', '3.0')
    """
    mean = f"{statistics.mean(numbers):.1f}"
    return f"{mean} ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else mean


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.1f}"


def measured(jobs: Sequence[StoryJob], only_finished: bool) -> list[dict[str, Any]]:
    """Measure the jobs one after the other, or read the results of earlier calls; print each result."""
    results = []
    for number, job in enumerate(jobs, 1):
        path = job.folder / MEASURED
        if not path.exists():
            if only_finished:
                continue
            result = measure(job)
            path.write_text(json.dumps(result, indent=2) + "\n")
        results.append(json.loads(path.read_text()))
        seeds = results[-1]["seeds"]
        errors = {seed: (each["training_loss"], each["validation_error"]) for seed, each in seeds.items()}
        shown = f"training loss and validation error of each seed {json.dumps(errors)}"
        print(f"{number} of {len(jobs)}: {job.folder.name}, {shown}", flush=True)
    return results


def main() -> None:
    """Train and evaluate the memory networks, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answering", description=main.__doc__)
    add_options(parser, RECIPES, at_once=1)
    parser.add_argument("--tasks", type=int, nargs="+", choices=TASKS, default=[*TASKS], help="bAbI tasks")
    parser.add_argument("--folder", default="en", choices=("en", "en-10k"), help="folder of the bAbI files")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds of each run")
    arguments = parser.parse_args()
    results = measured(jobs_of(arguments), arguments.measured)
    if results:
        finish("answering", table(results, arguments.notes), results, arguments)


if __name__ == "__main__":
    main()
