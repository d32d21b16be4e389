"""Benchmark of neural Turing machines: bits per sequence over several seeds, and speed (--speed).

python -m benchmarks.algorithms --only ntm-copy --variants ntm lstm    ten seeds of each, as one stacked model
python -m benchmarks.algorithms --variants content location            the two ways to find a slot
python -m benchmarks.algorithms --only ntm-associative-recall --variants width-1 width-4 width-20
python -m benchmarks.algorithms --measured                             a table of finished runs
python -m benchmarks.algorithms --speed                                sequences per second, on this machine

All seeds of a recipe and a variant are one run: on a GPU they are trained as one stacked model. A run with a
measured.json in its folder is not measured again; an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.algorithms_speed import speed_table
from benchmarks.recipe_runs import (
    Job,
    add_options,
    finish,
    job_options,
    job_record,
    jobs_at_once,
    measured_on,
    recipe_settings,
    train_job,
)
from regard.data.tape_tasks import TapeTask, build_tape_task
from regard.models.turing_machine import NeuralTuringMachine
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.run_folder import failures_of
from regard.tasks.algorithms.data import SequenceSource, generator_of, named_sizes
from regard.tasks.algorithms.task import sequence_bits, size_scores
from regard.training.progress import Progress
from regard.training.settings import merged

__all__ = ["RECIPES", "VARIANTS", "SeedsJob", "measure", "table"]

RECIPES = (
    "ntm-copy",
    "ntm-repeat-copy",
    "ntm-associative-recall",
    "ntm-n-grams",
    "ntm-priority-sort",
    "ntm-overwrite",
    "ntm-overwrite-short-tape",
)
MEMORY = 128 * 20
"""Number of values of the tape. With another slot width, the number of slots is chosen to keep it."""

VARIANTS: dict[str, dict[str, Any]] = {
    "ntm": {},
    "forward-heads": {"initial_heads": "forward"},
    "neutral-heads": {"initial_heads": "neutral"},
    "feedforward": {"controller": "feedforward"},
    "content": {"addressing": "content"},
    "location": {"addressing": "location"},
    "lstm": {"name": "lstm"},
    "gru": {"name": "gru"},
    **{f"width-{width}": {"slot_width": width, "slots": MEMORY // width} for width in (1, 2, 4, 8, 20)},
}
"""The changes of [model] for each variant. lstm, gru: with the number of parameters of the machine."""

TRAINING = "training lengths"
TARGETS = {
    "ntm-copy": {"length 20": 0.01, "length 60": 1.0},
    "ntm-repeat-copy": {TRAINING: 0.1},
    "ntm-associative-recall": {TRAINING: 0.1},
}
"""Bits per sequence that a seed must stay below, for the column "seeds below the target"."""

BASELINES = ("lstm", "gru")
SEQUENCES = 256
DRAWN, TEST_SEED = 64, 3
"""Training lengths: number of sizes that are drawn, with 64 sequences each; the seed of these sequences."""

ABOUT = """\
Median bits per sequence over the seeds [smallest to largest], of {count} sequences of each size; the
checkpoint with the fewest bits on the validation sequences. training lengths: sizes drawn as in training,
with the number of sequences. below: number of seeds whose bits are below the target of this size.
failed: number of seeds that ended with NaN or infinity.
"""


@dataclass(frozen=True)
class SeedsJob(Job):
    """All seeds of a recipe and a variant, trained as one run."""

    seeds: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.variant}-{len(self.seeds)}-seeds"

    @property
    def settings(self) -> dict[str, Any]:
        settings = {**super().settings, "seeds": list(self.seeds)}
        del settings["seed"]
        name = settings["model"]["name"]
        if name in BASELINES:
            machine = recipe_settings(self.recipe, self.data)["model"]
            settings["model"] = {"name": name, "parameters": parameters(settings["data"], machine)}
        return settings


def parameters(data: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    """Return the number of parameters of the machine of a recipe."""
    task = build_tape_task(data["built_in"])
    options = {name: value for name, value in model.items() if name != "name"}
    with torch.device("meta"):
        machine = build_sequence_model(model["name"], task.input_size, task.target_size, **options)
    return sum(each.numel() for each in machine.parameters())


def measure(job: Job) -> dict[str, Any]:
    """Train all seeds of a recipe and a variant, and evaluate the best checkpoint of each."""
    assert isinstance(job, SeedsJob)
    progress: Progress = train_job(job)
    failed = failures_of(job.folder)
    seeds: dict[str, dict[str, float]] = {}
    run: Any = None
    for seed in job.seeds:
        if seed in failed:
            continue
        run = regard.load(job.folder, seed=seed, device=job.device)
        source = SequenceSource(run.settings.data)
        seeds[str(seed)] = _bits(run, source)
    assert run is not None, "every seed has failed"
    return {
        **job_record(job, run.model, progress),
        "variant": job.variant,
        "training_sequences": DRAWN * 64,
        "seeds": seeds,
        "failed": {str(seed): text for seed, (_, text) in failed.items()},
    }


def _bits(run: Any, source: SequenceSource) -> dict[str, float]:
    """Return the bits per sequence for each size that fits on the tape; for n-grams also the optimal ones."""
    task, bits = source.task, {}
    bits[TRAINING] = training_bits(run.model, task)
    for sizes in (task.longest, *task.longer):
        try:
            run.check(sizes, "")
        except regard.ArgumentError:
            continue
        scores = size_scores(run, named_sizes(sizes), [source.fixed(SEQUENCES, sizes)])
        bits[scores.sizes] = scores.bits
        if scores.optimal_bits is not None:
            bits[f"{scores.sizes}, optimal"] = scores.optimal_bits
        # A head that moves at every step of a longer sequence would run around a short tape and overwrite it.
        machine = isinstance(run.model, NeuralTuringMachine) and run.model.first_memory is None
        if machine and run.model.slots <= task.steps(sizes):
            run.slots = 2 * run.model.slots
            longer = size_scores(run, named_sizes(sizes), [source.fixed(SEQUENCES, sizes)])
            bits[f"{scores.sizes}, {run.slots} slots"], run.slots = longer.bits, None
    return bits


def training_bits(model: torch.nn.Module, task: TapeTask) -> float:
    """Return the mean bits per sequence of sequences whose sizes are drawn as in training, all different.

    There are many, because a single wrong sequence can cost 100 bits.
    """
    drawn = Counter(tuple(task.sizes(generator_of(TEST_SEED, number)).items()) for number in range(DRAWN))
    parts = []
    for sizes, times in drawn.items():
        generator = generator_of(TEST_SEED, 0, *dict(sizes).values())
        scored = sequence_bits(model, task.draw(64 * times, dict(sizes), generator))
        assert scored is not None
        parts.append(scored.bits.double())
    return float(torch.cat(parts).mean())


def _shown(values: Sequence[float]) -> str:
    """Return the median and the range.

    >>> _shown([0.25, 2.0, 0.125])
    '0.25 [0.125 to 2]'
    """
    return f"{statistics.median(values):.4g} [{min(values):.4g} to {max(values):.4g}]"


def table(results: Sequence[Mapping[str, Any]], notes: str = "") -> str:
    """Return a Markdown table with one row per recipe, variant and size."""
    columns = ("recipe", "variant", "parameters", "steps", "seconds", "size", "bits per sequence", "below")
    rows = [ABOUT.format(count=SEQUENCES), f"| {' | '.join((*columns, 'failed'))} |"]
    rows.append("| --- " * (len(columns) + 1) + "|")
    for each in sorted(results, key=lambda each: (RECIPES.index(each["recipe"]), each["variant"])):
        names = list(dict.fromkeys(name for bits in each["seeds"].values() for name in bits))
        for name in names:
            values = [bits[name] for bits in each["seeds"].values() if math.isfinite(bits[name])]
            limit = TARGETS.get(each["recipe"], {}).get(name)
            total = len(each["seeds"]) + len(each["failed"])
            below = (
                "" if limit is None else f"{sum(value < limit for value in values)} of {total} < {limit:g}"
            )
            first = each["recipe"], each["variant"], f"{each['parameters']:,}", f"{each['steps']:,}"
            many = f" ({each['training_sequences']:,} sequences)" if name == TRAINING else ""
            size, failed = name + many, str(len(each["failed"]))
            cells = *first, f"{each['seconds']:.0f}", size, _shown(values), below, failed
            rows.append(f"| {' | '.join(cells)} |")
    remarks = [notes.strip(), ""] if notes else []
    return "\n".join([*rows, "", *remarks, measured_on(results), ""])


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs of the command line."""
    options = job_options(arguments)
    given, seeds = options.pop("changes"), tuple(range(arguments.seeds))
    jobs: list[Job] = []
    for recipe in arguments.only:
        for variant in arguments.variants:
            changes = merged({"model": VARIANTS[variant]}, given)
            jobs.append(SeedsJob(recipe, 0, variant=variant, changes=changes, seeds=seeds, **options))
    return jobs


def main() -> int:
    """Train recipes of neural Turing machines over several seeds and write a table, or measure the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=main.__doc__)
    if "--data" not in sys.argv:
        sys.argv += ["--data", str(Path("data"))]  # sequences are generated: there are no data files
    add_options(parser, RECIPES, at_once=1)
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS], default=["ntm", "lstm"])
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--speed", action="store_true", help="measure sequences per second instead")
    arguments = parser.parse_args()
    if arguments.speed:
        text, results = speed_table(arguments.device)
        finish("algorithms-speed", text, results, arguments)
        return 0
    results = jobs_at_once(measure, jobs_of(arguments), arguments.at_once)
    if results:
        finish("algorithms", table(results, arguments.notes), results, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
