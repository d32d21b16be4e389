"""Benchmark of captioners: none, soft, soft with the doubly stochastic penalty, and hard, over several seeds.

python -m benchmarks.captioning --data data --only shapes-soft --variants soft    the built-in pictures
python -m benchmarks.captioning --data data --only flickr8k-soft --at-once 4      Flickr8k, 12 runs
python -m benchmarks.captioning --data data --encoders convolutional NAME         also with a frozen encoder
python -m benchmarks.captioning --data data --measured                            a table of finished runs

DATA/flickr8k has captions.tsv.gz (image, split, five captions) and images128.tar (or .tar.xz), a tar file of
JPEG files, which is extracted to the folder of the runs. A run with a measured.json in its folder is not
measured again; an interrupted run is resumed. The image encoder efficientnet-lite0 reads its weights from
Regard's cache folder (REGARD_CACHE), or from its Python package.
"""

from __future__ import annotations

import argparse
import statistics
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from benchmarks.recipe_runs import (
    Job,
    add_options,
    finish,
    job_options,
    job_record,
    jobs_at_once,
    measured_on,
    train_job,
)
from regard.runs.command_options import CommandOption
from regard.runs.run_commands import ChosenRun
from regard.tasks.captioning import CaptioningTask
from regard.training.settings import merged

__all__ = ["RECIPES", "VARIANTS", "changes_of", "measure", "table"]

RECIPES = ("shapes-soft", "shapes-hard", "flickr8k-soft")
HARD = {
    "name": "reinforce",
    "baseline": {"name": "moving-average"},
    "samples": 2,
    "scale": 0.3,
    "entropy": 0.0,
    "expected": 0.5,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"model": {"select": "none"}, "training": {"doubly_stochastic": 0.0}},
    "soft": {"model": {"select": "softmax"}, "training": {"doubly_stochastic": 0.0}},
    "penalty": {"model": {"select": "softmax"}, "training": {"doubly_stochastic": 1.0}},
    "hard": {"model": {"select": "hard"}, "training": {"doubly_stochastic": 0.0, "estimator": HARD}},
}
"""The changes of a recipe for each variant. "penalty": soft attention with the doubly stochastic penalty."""

SCRATCH = "convolutional"
METRICS = ("cider", "bleu1", "bleu2", "bleu3", "bleu4", "bleu", "exact", "pointing", "pointing_chance")
ABOUT = """\
Test split, beam size 5, checkpoint with the highest CIDEr-D on the validation images; mean over seeds ±
standard deviation (n - 1). BLEU-1 to BLEU-4 have no brevity penalty, as in Xu et al. (2015); BLEU is that of
sacreBLEU. exact: fraction of captions that are true of the picture. pointing: fraction of content words whose
cell with the largest weight contains a pixel of the object; pointing_chance: the same for a random cell.
"""
PUBLISHED = """\
| published, Flickr8k | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | what it uses and we do not |
| --- | --- | --- | --- | --- | --- |
| Xu et al. 2015, soft attention | 67.0 | 44.8 | 29.9 | 19.5 | VGG pretrained on ImageNet, 224 x 224 pixels |
| Xu et al. 2015, hard attention | 67.0 | 45.7 | 31.4 | 21.3 | the same |
"""


def changes_of(recipe: str, variant: str, encoder: str) -> dict[str, Any]:
    """Return the changes of a recipe for a variant and an image encoder.

    >>> changes_of("flickr8k-soft", "none", "convolutional")["model"]
    {'select': 'none'}
    """
    changes = VARIANTS[variant]
    if encoder != SCRATCH:
        # Features of a frozen encoder are computed once, which needs images without augmentation.
        frozen = {"model": {"image_encoder": encoder}, "data": {"flip": False}}
        changes = merged(changes, frozen)
    return changes


def extracted(data: Path, runs: Path) -> Path:
    """Extract DATA/flickr8k/images128.tar* to the folder of the runs, once; return the folder of images."""
    folder = runs / "flickr8k-images"
    if not folder.is_dir():
        part = runs / "flickr8k-images.part"
        (path,) = sorted((data / "flickr8k").glob("images128.tar*"))[:1]
        with tarfile.open(path) as archive:
            archive.extractall(part, filter="data")
        part.rename(folder)
    return folder


def measure(job: Job) -> dict[str, Any]:
    """Train a recipe, and evaluate its best checkpoint on the test split."""
    progress = train_job(job)
    known = CaptioningTask.evaluate_options
    options = {each.parameter: each.default for each in known if isinstance(each, CommandOption)}
    shared = {"beam_size": None, "length_penalty": None, "greedy": False, "max_length": None}
    chosen = ChosenRun(job.folder, device=job.device)
    report = CaptioningTask.evaluate_run(chosen, {**options, **shared, "split": "test"}).to_dict()
    run = regard.load(job.folder, device="cpu")
    record = job_record(job, run.model, progress)
    # Leave out the folder of the extracted images: it does not affect the result.
    record["changes"] = {
        section: {name: value for name, value in values.items() if (section, name) != ("data", "images")}
        for section, values in record["changes"].items()
    }
    return {
        **record,
        "variant": job.variant,
        **{name: round(report[name], 4) for name in METRICS if name in report},
        "signatures": report["signatures"],
    }


def spread(numbers: Sequence[float], digits: int = 2) -> str:
    """Return mean ± standard deviation of a sample; "" without numbers.

    >>> spread([80.0, 81.0, 82.0], 1), spread([])
    ('81.0 ± 1.0', '')
    """
    if not numbers:
        return ""
    mean = f"{statistics.mean(numbers):.{digits}f}"
    return f"{mean} ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else mean


def table(results: Sequence[Mapping[str, Any]], notes: str = "") -> str:
    """Return a Markdown table with one row per recipe and variant, published results, and the machine."""
    columns = ("recipe", "variant", "seeds", "seconds", *METRICS)
    rows = [ABOUT, f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in results:
        groups.setdefault((each["recipe"], each["variant"]), []).append(each)
    for (recipe, variant), group in sorted(groups.items()):
        seconds = statistics.mean(each["seconds"] for each in group)
        digits = {name: 2 if name.startswith("bleu") else 3 for name in METRICS}
        scores = (spread([each[name] for each in group if name in each], digits[name]) for name in METRICS)
        rows.append(f"| {' | '.join((recipe, variant, str(len(group)), f'{seconds:.0f}', *scores))} |")
    remarks = [notes.strip(), ""] if notes else []
    return "\n".join([*rows, "", PUBLISHED, *remarks, measured_on(results), ""])


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs of the command line. The recipe shapes-hard has only the variant hard."""
    options = job_options(arguments)
    given, jobs = options.pop("changes"), list[Job]()
    for seed in arguments.seeds:
        for recipe in arguments.only:
            only_hard = recipe == "shapes-hard"
            # The pictures of shapes have the encoder of their recipe.
            encoders = arguments.encoders if recipe.startswith("flickr8k") else [SCRATCH]
            for variant in ["hard"] if only_hard else arguments.variants:
                for encoder in encoders:
                    changes = {} if only_hard else changes_of(recipe, variant, encoder)
                    if recipe.startswith("flickr8k"):
                        folder = str((arguments.runs / "flickr8k-images").absolute())
                        changes = merged(changes, {"data": {"images": [folder]}})
                    name = variant if encoder == SCRATCH else f"{variant} {encoder}"
                    jobs.append(Job(recipe, seed, variant=name, changes=merged(changes, given), **options))
    return jobs


def main() -> None:
    """Train and evaluate the captioners, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captioning", description=main.__doc__)
    add_options(parser, RECIPES, at_once=1)
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS], help="variants to train"
    )
    parser.add_argument(
        "--encoders", nargs="+", default=[SCRATCH], help="image encoders (default: from scratch)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds")
    arguments = parser.parse_args()
    if not arguments.measured and any(name.startswith("flickr8k") for name in arguments.only):
        arguments.runs.mkdir(parents=True, exist_ok=True)
        extracted(arguments.data, arguments.runs)
    results = jobs_at_once(measure, jobs_of(arguments), arguments.at_once)
    finish("captioning", table(results, arguments.notes), results, arguments)


if __name__ == "__main__":
    main()
