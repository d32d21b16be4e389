"""Benchmark on the built-in corpus: train translators for a fixed time, and measure BLEU and alignment error.

python -m benchmarks.korean                     train bahdanau five times and seq2seq once, 90 seconds each
python -m benchmarks.korean --seconds 20 --seeds 1 --no-write
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from benchmarks.loop import Progress, seconds, train
from benchmarks.measure import RESULTS, environment
from regard.data import Batches, EncodedPairs, Tokenizer, korean_english, train_tokenizers
from regard.data.batch import Batch
from regard.data.korean import Example
from regard.decoding import Greedy, Translator
from regard.evaluation import Links, bleu, score_links
from regard.models import build_model

__all__ = ["MODELS", "Trained", "Measured", "examples", "measured", "train_for"]

PAIRS = 40000
MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {"width": 96, "dropout": 0.05},
    "seq2seq": {"width": 256, "cell": "gru", "reverse": True},
}


@dataclass(frozen=True)
class Trained:
    """A translator, and the number of steps it was trained for."""

    translator: Translator
    steps: int


@dataclass(frozen=True)
class Measured:
    """The scores of one model: BLEU and alignment error rate on 500 test sentences, BLEU on 200 long ones.

    error_rate: in per cent; None for a model without attention.
    """

    model: str
    seed: int
    steps: int
    bleu: float
    error_rate: float | None
    bleu_long: float


@cache
def examples(split: str, count: int) -> list[Example]:
    """Return sentence pairs of a split of the built-in corpus."""
    return list(korean_english(split, count))


@cache
def training_data() -> tuple[Tokenizer, Tokenizer, EncodedPairs]:
    """Return the word tokenizers of both sides, and the encoded training pairs."""
    pairs = examples("train", PAIRS)
    source, target = train_tokenizers(pairs, "word")
    encoded = EncodedPairs.in_memory(
        source.encode_lines([pair.source for pair in pairs]),
        target.encode_lines([pair.target for pair in pairs]),
    )
    return source, target, encoded


def train_for(progress: Progress, name: str, seed: int, **options: Any) -> Trained:
    """Train the model of this name until progress reaches 1."""
    source, target, encoded = training_data()
    torch.manual_seed(seed)
    model = build_model(name, source.size, target.size, **{**MODELS[name], **options})
    batches = Batches(encoded, tokens=800, seed=seed)

    def endless() -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from batches.epoch(epoch)
            epoch += 1

    taken = train(model, endless(), progress, rate=6e-3)
    return Trained(Translator(model, source, target, search=Greedy()), taken)


def translated(trained: Trained, split: str, count: int) -> float:
    """Return the BLEU of greedy translations of this many sentences; the corpus is already tokenized."""
    pairs = examples(split, count)
    found = trained.translator.translate([pair.source for pair in pairs])
    return bleu([each.text for each in found], [pair.target for pair in pairs]).value


def aligned(trained: Trained, split: str, count: int) -> float:
    """Return the alignment error rate in per cent, by the largest weights for the reference translation."""
    pairs = examples(split, count)
    found = trained.translator.align([pair.source for pair in pairs], [pair.target for pair in pairs])
    gold = [Links(pair.sure, pair.possible) for pair in pairs]
    return 100 * score_links([each.links for each in found], gold).error_rate


def measured(progress: Progress, name: str, seed: int) -> Measured:
    """Train a model, and measure its translations and alignments."""
    trained = train_for(progress, name, seed)
    return Measured(
        name,
        seed,
        trained.steps,
        translated(trained, "test", 500),
        None if name == "seq2seq" else aligned(trained, "test", 500),
        translated(trained, "long", 200),
    )


def table(found: list[Measured], budget: float) -> str:
    """Return a Markdown table with one row per run, and the medians of the model with attention."""
    lines = [
        f"Trained for {budget:.0f} seconds on the built-in corpus; BLEU of "
        "greedy translations of 500 test sentences and of 200 long ones, alignment error rate by forced "
        "decoding.",
        "",
        "| model | seed | steps | BLEU | alignment error rate | BLEU of 25 to 60 words |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        rate = "" if each.error_rate is None else f"{each.error_rate:.1f} %"
        lines.append(
            f"| {each.model} | {each.seed} | {each.steps} | {each.bleu:.1f} | {rate} | {each.bleu_long:.1f} |"
        )
    rates = [each.error_rate for each in found if each.error_rate is not None]
    scores = [each.bleu for each in found if each.error_rate is not None]
    medians = f"Medians of bahdanau: BLEU {statistics.median(scores):.1f}, alignment error rate "
    lines += ["", f"{medians}{statistics.median(rates):.1f} %."] if rates else []
    where = ", ".join(f"{name} {value}" for name, value in environment().items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> None:
    """Train and measure translators, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.korean", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="training time per model (default: 90)")
    parser.add_argument("--seeds", type=int, default=5, help="number of bahdanau runs (default: 5)")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")
    arguments = parser.parse_args()
    training_data()
    found = []
    for name, seed in [*(("bahdanau", seed) for seed in range(arguments.seeds)), ("seq2seq", 0)]:
        found.append(measured(seconds(arguments.seconds), name, seed))
        print(found[-1], flush=True)
    text = table(found, arguments.seconds)
    print("\n" + text)
    if not arguments.no_write:
        stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-korean"
        record = {
            "environment": environment(),
            "seconds": arguments.seconds,
            "models": MODELS,
            "runs": [asdict(each) for each in found],
        }
        stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"Wrote {stem.name}.json and .md")


if __name__ == "__main__":
    main()
