"""Benchmark on Multi30k: train the recipes on its 29,000 pairs, and evaluate them on test 2016.

python -m benchmarks.multi30k --data data                        every recipe once, one after another
python -m benchmarks.multi30k --data data --seeds 3 --only multi30k-en-de-transformer --at-once 3

`regard data fetch multi30k-en-de --output data` downloads the data. A run with a measured.json in its folder
is not measured again; an interrupted run is resumed. --measured only reports the runs that are measured
already.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.measure import RESULTS, environment
from regard.decoding import Average, Beam
from regard.evaluation import Score, bleu, moses_bleu
from regard.tasks.translation import load_translator, train_translation
from regard.training.settings import read_toml

__all__ = ["RECIPES", "Measured", "given", "measured", "table"]

RECIPES = {path.stem: path for path in sorted(Path(__file__).parents[1].glob("recipes/multi30k-*.toml"))}
TEST = "test_2016_flickr"
MEASURED = "measured.json"
ABOUT = """\
Trained on the 29,000 pairs of Multi30k only, lowercased; evaluated on val and on test 2016 (Flickr, 1,000
sentences) with the checkpoint that was best on val during training; beam size 5, log-probabilities divided by
length^alpha{chosen}. val, test: sacreBLEU, 13a, lowercased. Moses: BLEU, lowercased and Moses-tokenized, as
papers report it. seconds: training time, including evaluations on val. tokens/s: target tokens per second,
the median of the run.
"""
PEERS = """\
| published | direction | model | test BLEU | flavour |
| --- | --- | --- | --- | --- |
| Wu et al. 2021 | en-de | Transformer-Tiny, last 10 averaged, beam 5 | 41.02 | lower-cased, Moses |
| a well-known tutorial | de-en | fixed vector | 13.8 | tokenised |
| the same | de-en | GRU | 20.6 | tokenised |
| the same | de-en | Bahdanau | 28.3 | tokenised |
| the same | de-en | Transformer | 36.5 | tokenised |
"""


@dataclass(frozen=True)
class Measured:
    """The result of one run: settings, time and BLEU. at_once: number of runs that shared the GPU."""

    recipe: str
    seed: int
    parameters: int
    steps: int
    best_step: int
    seconds: float
    tokens_per_second: float
    at_once: int
    alpha: float
    val: float
    val_moses: float
    test: float
    test_moses: float
    signature: str
    signature_moses: str
    machine: dict[str, str]


def given(recipe: str, data: Path, seed: int) -> dict[str, Any]:
    """Return the settings of a recipe, with the data in another folder and `seed` added to its seed."""
    settings = read_toml(RECIPES[recipe])
    for name, places in settings["data"].items():
        if isinstance(places, list):
            settings["data"][name] = [str(data / Path(place).relative_to("data")) for place in places]
    return {**settings, "seed": settings["seed"] + seed}


def folder_of(recipe: str, seed: int, runs: Path) -> Path:
    """Return the run folder of a recipe with `seed` added to its seed."""
    return runs / f"{recipe}-{read_toml(RECIPES[recipe])['seed'] + seed}"


def measured(
    recipe: str, seed: int, data: Path, runs: Path, at_once: int, alphas: Sequence[float]
) -> Measured:
    """Train and evaluate a recipe in its own run folder, or read the results of an earlier call."""
    settings, folder = given(recipe, data, seed), folder_of(recipe, seed, runs)
    kept = folder / MEASURED
    if kept.exists():
        return Measured(**json.loads(kept.read_text()))
    with open(runs / f"{folder.name}.log", "w") as said:
        progress = train_translation(settings, folder, resume=True, console=Console(file=said)).progress
    translator = load_translator(folder, look=None, tokens_per_batch=16384, precision="float32")
    direction = recipe.split("-")[1:3]

    def evaluated(part: str, alpha: float) -> list[Score]:
        source, target = (lines(data / "multi30k" / f"{part}.{language}") for language in direction)
        translator.search = Beam(size=5, length=Average(alpha))
        found = [each.text for each in translator.translate(source)]
        return [bleu(found, target, lowercase=True), moses_bleu(found, target, direction[1])]

    tried = {alpha: evaluated("val", alpha) for alpha in alphas}
    alpha = max(tried, key=lambda each: tried[each][0].value)
    scores = [*tried[alpha], *evaluated(TEST, alpha)]
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    pace = [each["tokens_per_second"] for each in records if each["kind"] == "training"]
    result = Measured(
        recipe,
        settings["seed"],
        sum(each.numel() for each in translator.model.parameters()),
        progress.step,
        progress.best_step,
        round(progress.seconds, 1),
        round(statistics.median(pace)),
        at_once,
        alpha,
        *(round(score.value, 2) for score in scores),
        scores[2].signature,
        scores[3].signature,
        machine(),
    )
    kept.write_text(json.dumps(asdict(result), indent=2) + "\n")
    return result


def lines(path: Path) -> list[str]:
    r"""Return the lines of a file, split at \n only."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def machine() -> dict[str, str]:
    """Return a description of the machine, including the GPU."""
    return {**environment(), **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})}


def table(found: list[Measured], alphas: Sequence[float], notes: str = "") -> str:
    """Return a Markdown table with one row per run, published results, and the machine."""
    tried = ", ".join(f"{alpha:g}" for alpha in alphas)
    about = ABOUT.format(chosen=f", alpha selected on val from {tried}" if len(alphas) > 1 else "")
    counted = "direction | model | seed | parameters | steps | best | seconds | tokens/s | alpha"
    rows = [about, f"| {counted} | val | test | val Moses | test Moses |", "| --- " * 13 + "|"]
    for each in sorted(found, key=lambda each: (each.recipe, each.seed)):
        _, source, target, model = each.recipe.split("-", 3)
        counts = each.seed, each.parameters, each.steps, each.best_step, each.seconds, each.tokens_per_second
        scores = each.val, each.test, each.val_moses, each.test_moses
        cells = [f"{source}-{target}", model, *(f"{count:,.0f}" for count in counts), f"{each.alpha:g}"]
        rows.append(f"| {' | '.join([*cells, *(f'{score:.1f}' for score in scores)])} |")
    signatures = sorted({each.signature for each in found} | {each.signature_moses for each in found})
    places = sorted({", ".join(f"{name} {value}" for name, value in each.machine.items()) for each in found})
    shared: dict[int, dict[str, None]] = {}
    for each in sorted(found, key=lambda each: each.recipe):
        shared.setdefault(each.at_once, {})["-".join(each.recipe.split("-")[1:3])] = None
    rows += [
        "",
        PEERS,
        *(["", notes.strip(), ""] if notes else []),
        "Signatures: " + "; ".join(signatures) + ".",
    ]
    together = [
        ("one run at a time on its GPU" if count == 1 else f"up to {count} runs at a time on one GPU")
        + (f" ({', '.join(directions)})" if len(shared) > 1 else "")
        for count, directions in shared.items()
    ]
    return "\n".join([*rows, "", f"Measured on: {'; '.join([*places, *together])}.", ""])


def main() -> None:
    """Train and evaluate the recipes, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi30k", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="output folder of regard data fetch")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder of the run folders (default: runs)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=RECIPES, default=[*RECIPES], help="recipes to train (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each recipe (default: 1)")
    parser.add_argument("--at-once", type=int, default=1, help="number of parallel runs (default: 1)")
    parser.add_argument(
        "--sharing", type=int, help="number of runs that share the machine, if other programs run too"
    )
    parser.add_argument(
        "--alphas", type=float, nargs="+", default=[1.0], help="length penalties to select from on val"
    )
    parser.add_argument("--measured", action="store_true", help="only report existing results, train nothing")
    parser.add_argument("--notes", default="", help="remarks for the table")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(recipe, seed) for recipe in arguments.only for seed in range(arguments.seeds)]
    if arguments.measured:
        jobs = [job for job in jobs if (folder_of(*job, arguments.runs) / MEASURED).exists()]
    found = []
    # Each run has a new process, so that its seed and timing do not depend on earlier runs.
    with ProcessPoolExecutor(arguments.at_once, get_context("spawn"), max_tasks_per_child=1) as pool:
        rest = (
            arguments.data,
            arguments.runs,
            arguments.sharing or min(arguments.at_once, len(jobs)),
            arguments.alphas,
        )
        for each in as_completed([pool.submit(measured, *job, *rest) for job in jobs]):
            found.append(each.result())
            print(json.dumps(asdict(found[-1])), flush=True)
    found.sort(key=lambda each: (each.recipe, each.seed))
    text = table(found, arguments.alphas, arguments.notes)
    print("\n" + text)
    if not arguments.no_write:
        stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-multi30k"
        record = {"notes": arguments.notes, "runs": [asdict(each) for each in found]}
        stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"Wrote {stem.name}.json and .md")


if __name__ == "__main__":
    main()
