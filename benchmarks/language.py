"""Benchmark on Penn Treebank: train the recipes ptb-*, and evaluate them on the validation and test text.

python -m benchmarks.language --data data                  all recipes, one after the other
python -m benchmarks.language --data data --at-once 3      all at the same time on one GPU
python -m benchmarks.language --data data --only ptb-transformer --variant "dropout 0.3" \
    --set model.dropout=0.3                                a recipe with other settings
python -m benchmarks.language --data data --measured       the table of all finished runs

DATA/ptb has Mikolov's files ptb.{train,valid,test}.txt.gz. A run with a measured.json in its folder is not
measured again; an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
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

__all__ = ["RECIPES", "measure", "table"]

RECIPES = ("ptb-lstm", "ptb-transformer", "ptb-lstmn", "ptb-lstm-300")
ABOUT = """\
Penn Treebank, 10,000 words, trained on its 929,589 tokens only. Perplexity per word, where each line end
counts as a word, of the checkpoint with the lowest perplexity on the validation text. ptb-lstm reads a text
from beginning to end with its state carried; ptb-lstmn and ptb-lstm-300 read each sentence on its own, so
that no word is predicted from an earlier sentence; ptb-transformer reads overlapping windows of 128 tokens
with stride 32. seconds: training time, including evaluations. tokens/s: the median of the run.
"""
PUBLISHED = """\
| published | parameters | valid | test |
| --- | --- | --- | --- |
| Zaremba et al. 2015, medium regularized LSTM | 20 M | 86.2 | 82.7 |
| Cheng et al. 2016, LSTMN, one layer of 300 | | | 108 |
| Cheng et al. 2016, LSTMN, three layers of 300 | | | 102 |
"""


def measure(job: Job) -> dict[str, Any]:
    """Train a recipe, and evaluate its best checkpoint on the validation and the test text."""
    progress = train_job(job)
    run = regard.load(job.folder, device=job.device)
    texts = {part: str(job.data / "ptb" / f"ptb.{part}.txt.gz") for part in ("valid", "test")}
    losses = {part: run.evaluate(path) for part, path in texts.items()}
    records = [json.loads(line) for line in (job.folder / "log.jsonl").read_text().splitlines()]
    speeds = [each["tokens_per_second"] for each in records if each["kind"] == "training"]
    return {
        **job_record(job, run.model, progress),
        "variant": job.variant,
        "tokens_per_second": round(statistics.median(speeds)),
        "valid": round(losses["valid"].word_perplexity, 2),
        "test": round(losses["test"].word_perplexity, 2),
        "test_tokens": losses["test"].tokens,
        "messages": [each["text"] for each in records if each["kind"] == "capture"],
    }


def table(results: Sequence[Mapping[str, Any]], notes: str = "") -> str:
    """Return a Markdown table with one row per run, published results, and the machine."""
    columns = ("recipe", "seed", "parameters", "steps", "best", "seconds", "tokens/s", "valid", "test")
    rows = [ABOUT, f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for each in sorted(results, key=lambda each: (each["recipe"], each["variant"], each["seed"])):
        name = ", ".join(filter(None, (each["recipe"], each["variant"])))
        counts = [each[key] for key in ("parameters", "steps", "best_step", "seconds", "tokens_per_second")]
        scores = (f"{each[key]:.1f}" for key in ("valid", "test"))
        cells = [name, str(each["seed"]), *(f"{count:,.0f}" for count in counts), *scores]
        rows.append(f"| {' | '.join(cells)} |")
    remarks = [notes.strip(), ""] if notes else []
    return "\n".join([*rows, "", PUBLISHED, *remarks, measured_on(results), ""])


def main() -> None:
    """Train and evaluate the recipes, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=main.__doc__)
    add_options(parser, RECIPES, at_once=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds (default: 1)")
    parser.add_argument("--variant", default="", help="name of the changes by --set, for the table")
    arguments = parser.parse_args()
    if arguments.measured:
        kept = sorted(arguments.runs.glob("ptb-*/measured.json"))
        results = [json.loads(path.read_text()) for path in kept]
    else:
        options = {**job_options(arguments), "variant": arguments.variant}
        jobs = [Job(recipe, seed, **options) for recipe in arguments.only for seed in arguments.seeds]
        results = jobs_at_once(measure, jobs, arguments.at_once)
    finish("language", table(results, arguments.notes), results, arguments)


if __name__ == "__main__":
    main()
