"""Benchmark of classifiers: SST fine and binary, and SICK, over several seeds.

python -m benchmarks.classification --data data --device cpu --at-once 16     90 runs, one CPU core each
python -m benchmarks.classification --data data --only sick --models mean     five of these runs
python -m benchmarks.classification --data data --models lstmn equal          LSTMN and an LSTM of its size
python -m benchmarks.classification --data data --measured                    the table of all finished runs

DATA/sentiment and DATA/sick have the files that the recipes name. A run with a measured.json in its folder is
not measured again; an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import statistics
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
from regard.data.labelled_text import read_labelled
from regard.training.settings import merged

__all__ = ["MODELS", "TESTS", "changes_of", "measure", "paired", "table"]

TESTS = {
    "sst-fine": "sentiment/stsa.fine.test.gz",
    "sst-binary": "sentiment/stsa.binary.test.gz",
    "sick": "sick/SICK_test_annotated.txt.gz",
}
TRANSFORMER = {"width": 128, "layers": 2, "heads": 4, "inner": 512, "pooling": "attention"}
MODELS: dict[str, dict[str, Any]] = {
    "attention": {"model": {"pooling": "attention"}},
    "mean": {"model": {"pooling": "mean"}},
    "last": {"model": {"pooling": "last"}},
    "transformer": {"model": {"name": "transformer", **TRANSFORMER}, "training": {"learning_rate": 0.001}},
    "lstmn": {"model": {"name": "lstmn", "width": 128, "embedding": 128, "pooling": "mean"}},
    "equal": {"model": {"embedding": 128, "pooling": "mean", "bidirectional": False}},
}
"""The changes of the recipes: the pooling of the LSTM, a Transformer with attention pooling, an LSTMN with
mean pooling, and an LSTM in one direction with mean pooling and as many parameters as this LSTMN."""

EQUAL_WIDTHS = {"sst-fine": 157, "sst-binary": 157, "sick": 146}
"""Width of the LSTM `equal` in each recipe. The numbers of parameters of both differ by less than 1 %."""

NAMES = {
    "transformer": "transformer, attention pooling",
    "lstmn": "lstmn, mean pooling",
    "equal": "lstm in one direction, mean pooling, size of the lstmn",
}
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantile of Student's t distribution by degrees of freedom."""
ABOUT = """\
Accuracy in per cent: mean over seeds ± standard deviation (n - 1). Trained on the root sentences of the
training set only, from random word vectors, without phrase labels, parse trees or pretrained vectors; the
checkpoint with the highest accuracy on the validation set. The LSTM is bidirectional unless its row says "in
one direction". The states are pooled by additive attention with one learned query, by their mean, or by the
final states.
"""
PUBLISHED = """\
| published | SST fine | SST binary | what it uses and we do not |
| --- | --- | --- | --- |
| Tai et al. 2015, LSTM | 46.4 | 84.9 | GloVe vectors of 840 billion words, labels of all phrases |
| Tai et al. 2015, bidirectional LSTM | 49.1 | 87.5 | the same |
| Tai et al. 2015, constituency Tree-LSTM | 51.0 | 88.0 | the same, and parse trees |
| Cheng et al. 2016, LSTMN, 2 layers | 47.9 | 87.0 | GloVe vectors |

| published | SICK | what it uses and we do not |
| --- | --- | --- |
| Marelli et al. 2014 (SemEval), majority class | 56.7 | |
| Bowman et al. 2015, LSTM trained on SICK only | 71.3 | GloVe vectors |
| Bowman et al. 2015, LSTM trained on SNLI and SICK | 80.8 | GloVe vectors, 550,000 pairs of SNLI |
| Marelli et al. 2014, best system (Illinois-LH) | 84.6 | WordNet and hand-crafted features |
"""


def measure(job: Job) -> dict[str, Any]:
    """Train a recipe, and evaluate its best checkpoint on the validation and the test set."""
    progress = train_job(job)
    run = regard.load(job.folder, device=job.device)
    data = run.settings.data
    columns: dict[str, Any] = {"label": data.label, "text": data.text, "second": data.second}

    def evaluated(path: str | Path) -> Any:
        return run.evaluate(read_labelled(path, data.format, **columns, ignore=data.ignore))

    valid, test = evaluated(data.valid_file[0]), evaluated(job.data / TESTS[job.recipe])
    return {
        **job_record(job, run.model, progress),
        "model": job.variant,
        "valid": round(100 * valid.accuracy, 2),
        "test": round(100 * test.accuracy, 2),
        "test_macro_f1": round(100 * test.macro_f1, 2),
    }


def changes_of(recipe: str, model: str) -> dict[str, Any]:
    """Return the changes of a recipe for a model.

    >>> changes_of("sick", "equal")["model"]["width"]
    146
    """
    width = {"model": {"width": EQUAL_WIDTHS[recipe]}} if model == "equal" else {}
    return merged(MODELS[model], width)


def paired(results: Sequence[Mapping[str, Any]], recipe: str) -> str:
    """Return the mean difference of test accuracy, lstmn minus equal, over the seeds that both have.

    The interval is the 95 % confidence interval of Student's t test for paired samples; "" without two seeds.

    >>> runs = [("lstmn", 1, 80.0), ("equal", 1, 79.0), ("lstmn", 2, 81.0), ("equal", 2, 79.5)]
    >>> rows = [{"recipe": "sick", "model": m, "seed": s, "test": score} for m, s, score in runs]
    >>> paired(rows, "sick")
    '| sick | 2 | +1.25 | -1.93 to +4.43 | yes |'
    """
    scores = {(each["model"], each["seed"]): each["test"] for each in results if each["recipe"] == recipe}
    seeds = [seed for model, seed in scores if model == "lstmn" and ("equal", seed) in scores]
    gains = [scores["lstmn", seed] - scores["equal", seed] for seed in seeds]
    if len(gains) < 2 or len(gains) - 1 not in STUDENT:
        return ""
    mean = statistics.mean(gains)
    half = STUDENT[len(gains) - 1] * statistics.stdev(gains) / len(gains) ** 0.5
    zero = "yes" if mean - half <= 0 <= mean + half else "no"
    return f"| {recipe} | {len(gains)} | {mean:+.2f} | {mean - half:+.2f} to {mean + half:+.2f} | {zero} |"


def spread(numbers: Sequence[float]) -> str:
    """Return mean ± standard deviation of a sample.

    >>> spread([80.0, 81.0, 82.0]), spread([80.0])
    ('81.0 ± 1.0', '80.0')
    """
    mean = f"{statistics.mean(numbers):.1f}"
    return f"{mean} ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else mean


def table(results: Sequence[Mapping[str, Any]], notes: str = "") -> str:
    """Return a Markdown table with one row per recipe and model, published results, and the machine."""
    columns = ("recipe", "model", "seeds", "parameters", "seconds", "valid", "test", "test macro F1")
    rows = [ABOUT, f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in results:
        groups.setdefault((each["recipe"], each["model"]), []).append(each)
    recipes, models = list(TESTS), list(MODELS)
    for (recipe, model), group in sorted(
        groups.items(), key=lambda item: (recipes.index(item[0][0]), models.index(item[0][1]))
    ):
        seconds = statistics.mean(each["seconds"] for each in group)
        counts = f"{len(group)}", f"{group[0]['parameters']:,}", f"{seconds:.0f}"
        scores = (spread([each[key] for each in group]) for key in ("valid", "test", "test_macro_f1"))
        cells = (recipe, NAMES.get(model, f"lstm, {model} pooling"), *counts, *scores)
        rows.append(f"| {' | '.join(cells)} |")
    pairs = [line for line in (paired(results, recipe) for recipe in recipes) if line]
    if pairs:
        head = "lstmn minus lstm of its size", "seeds", "difference, test", "95 % interval", "contains 0"
        rows += ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *pairs]
    remarks = [notes.strip(), ""] if notes else []
    return "\n".join([*rows, "", PUBLISHED, *remarks, measured_on(results), ""])


def main() -> None:
    """Train and evaluate the classifiers, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classification", description=main.__doc__)
    add_options(parser, list(TESTS), at_once=1)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="models to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="seeds")
    arguments = parser.parse_args()
    options = job_options(arguments)
    changes = options.pop("changes")
    jobs = [
        Job(recipe, seed, variant=model, changes=merged(changes_of(recipe, model), changes), **options)
        for seed in arguments.seeds
        for recipe in arguments.only
        for model in arguments.models
    ]
    results = jobs_at_once(measure, jobs, arguments.at_once)
    finish("classification", table(results, arguments.notes), results, arguments)


if __name__ == "__main__":
    main()
