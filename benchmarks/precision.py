"""Precision of training: speed and quality of each value of training.precision, on the built-in corpus.

python -m benchmarks.precision --device cuda --models bahdanau luong --seeds 1,2,3 --into FOLDER
python -m benchmarks.precision --models language-lstmn classification-lstm captioning-captioner

Every model is trained with each precision and each seed for the same number of steps, one run after another
in this process. Only the precision differs: the initial weights and the batches of a seed are the same. The
table contains the median speed of the log, and the validation loss and the score after the last step: BLEU,
perplexity or accuracy.

Language models are trained on the English sentences of the corpus. Classifiers are trained to predict the
number of words of the English translation from the Korean sentence. The captioner is trained on the built-in
pictures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from benchmarks.measure import environment, require_device, write_results
from benchmarks.training_run import EVERY, summary
from regard.data.korean import korean_english
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.task_table import find_task

__all__ = ["MODELS", "PRECISIONS", "settings_of", "table", "task_and_model", "write_texts"]

PRECISIONS = ("float32", "tf32", "bfloat16")

MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {"width": 384, "embedding": 256, "dropout": 0.3},
    "luong": {"width": 384, "embedding": 256, "dropout": 0.3, "both_ways": True},
    "seq2seq": {"width": 384, "embedding": 256, "dropout": 0.3},
    "lstmn": {"width": 256, "dropout": 0.3},
    "transformer": {"width": 256, "heads": 4, "inner": 512, "layers": 3, "dropout": 0.1},
    "language-lstm": {"width": 512, "dropout": 0.3},
    "language-gru": {"width": 512, "dropout": 0.3},
    "language-lstmn": {"width": 256, "dropout": 0.3},
    "language-transformer": {"width": 256, "heads": 4, "inner": 1024, "layers": 3, "dropout": 0.1},
    "classification-lstm": {"width": 256, "dropout": 0.3},
    "classification-gru": {"width": 256, "dropout": 0.3},
    "classification-lstmn": {"width": 256, "dropout": 0.3},
    "classification-transformer": {"width": 256, "heads": 4, "inner": 512, "layers": 3, "dropout": 0.1},
    "captioning-captioner": {"width": 256, "dropout": 0.3, "image_encoder": "convolutional"},
}
"""The options of each model. Those of bahdanau and luong are as in the recipes for Multi30k. The names of
models for other tasks than translation start with the name of the task."""

SCORES = {"translation": "bleu", "language": "perplexity", "classification": "accuracy", "captioning": "bleu"}
"""The score in the log of each task."""


def task_and_model(name: str) -> tuple[str, str]:
    """Return the task and the model of a name in MODELS.

    >>> task_and_model("language-lstmn"), task_and_model("luong")
    (('language', 'lstmn'), ('translation', 'luong'))
    """
    task, _, model = name.rpartition("-")
    return task or "translation", model


def settings_of(
    name: str, precision: str, seed: int, steps: int, pairs: int, batch_tokens: int, sentences: int = 1000,
    folder: Path = Path(),
) -> dict[str, Any]:  # fmt: skip
    """Return the settings of a run. The learning rate and its schedule are the same for all precisions.

    name: a name in MODELS. sentences: number of validation sentences for BLEU, or of pictures.
    folder: contains the files of write_texts().
    """
    task, model = task_and_model(name)
    training = {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "learning_rate": 1.5e-3,
        "warmup_steps": min(200, steps // 4),
        "precision": precision,
        "evaluate_every": steps,
        "log_every": EVERY,
    }
    data: dict[str, Any] = {
        "translation": {"built_in": "korean", "pairs": pairs},
        "language": {"train_file": [str(folder / "english.txt")], "layout": "documents", "tokenizer": "word"},
        "classification": {"train_file": [str(folder / "lengths.tsv")], "format": "tsv"},
        "captioning": {"built_in": "shapes", "pictures": pairs},
    }[task]
    evaluation = {
        "translation": {"sentences": sentences},
        "captioning": {"images": sentences, "samples": 0},
    }.get(task, {"samples": 0})
    settings = {"seed": seed, "data": data, "model": {"name": model, **MODELS[name]}, "training": training}
    return {**settings, "evaluation": evaluation} | ({} if task == "translation" else {"task": task})


def write_texts(folder: Path, pairs: int) -> None:
    """Write the files of the language models and classifiers: english.txt and lengths.tsv."""
    examples = list(korean_english(count=pairs))
    (folder / "english.txt").write_text("".join(f"{each.target}\n" for each in examples), encoding="utf-8")
    lines = [f"{len(each.target.split())}\t{each.source}\n" for each in examples]
    (folder / "lengths.tsv").write_text("".join(lines), encoding="utf-8")


def measured(name: str, settings: dict[str, Any], folder: Path, device: str) -> dict[str, Any]:
    """Train a model; return its speed, and the losses and the score of its last evaluation."""
    task, _ = task_and_model(name)
    train_run(find_task(task), settings, folder, machine=Machine(device), console=Console(quiet=True))
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    evaluation = next(each for each in reversed(records) if each["kind"] == "evaluation")
    row = summary(records, records[0]["time"], records[-1]["time"])
    last = max(row["losses"], key=int)
    return {
        "model": name,
        "precision": settings["training"]["precision"],
        "seed": settings["seed"],
        "steps": row["steps"],
        "tokens/s": row["tokens/s"],
        "training loss": row["losses"][last],
        "loss": evaluation["loss"],
        "score": evaluation.get(SCORES[task]),
        "messages": row["messages"],
    }


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown: a row for each model and precision, with the means over the seeds."""
    lines = [
        f"`python -m benchmarks.precision`: {record['about']}",
        "",
        "| model | precision | seeds | tokens/s | validation loss | score |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        groups.setdefault((row["model"], row["precision"]), []).append(row)
    for (model, precision), rows in groups.items():
        speed = statistics.median(row["tokens/s"] for row in rows)
        cells = [model, precision, f"{len(rows)}", f"{speed:,.0f}"]
        cells += [_mean([row[name] for row in rows], digits) for name, digits in (("loss", 4), ("score", 2))]
        lines.append(f"| {' | '.join(cells)} |")
    where = ", ".join(f"{name} {value}" for name, value in record["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def _mean(values: Sequence[float], digits: int) -> str:
    """Return the mean of some values, and their sample standard deviation if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def main() -> None:
    """Train models in each precision."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=main.__doc__)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--models", nargs="+", default=["bahdanau", "luong"], choices=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--seeds", default="1", help="comma-separated seeds, such as 1,2,3")
    parser.add_argument("--steps", type=int, default=600, help="number of steps of each run")
    parser.add_argument("--pairs", type=int, default=20_000, help="number of pairs of the corpus")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="tokens of a batch")
    parser.add_argument("--sentences", type=int, default=1000, help="validation sentences for BLEU")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the result files")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    if arguments.steps < EVERY:
        parser.error(f"--steps must be at least {EVERY}, the number of steps between two records of the log")
    where = environment()
    if arguments.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    sizes = arguments.steps, arguments.pairs, arguments.batch_tokens, arguments.sentences
    about = f"{sizes[0]:,} steps of {sizes[2]:,} tokens, {sizes[1]:,} pairs of the built-in corpus."
    record: dict[str, Any] = {"date": f"{datetime.date.today()}", "about": about, "environment": where}
    record["rows"] = []
    for model in arguments.models:
        for seed in map(int, arguments.seeds.split(",")):
            for precision in arguments.precisions:
                with TemporaryDirectory() as name:
                    folder = Path(name)
                    write_texts(folder, arguments.pairs)
                    settings = settings_of(model, precision, seed, *sizes, folder)
                    record["rows"].append(measured(model, settings, folder / "run", arguments.device))
                print(json.dumps(record["rows"][-1]), file=sys.stderr, flush=True)
                _write(arguments.into, record)
    print(table(record))


def _write(folder: Path | None, record: dict[str, Any]) -> None:
    """Write the results so far."""
    if folder is not None:
        write_results(folder, f"{record['date']}-precision", record, table(record))


if __name__ == "__main__":
    main()
