"""Benchmark of faithfulness: train translators on the built-in corpus and test their attention.

python -m benchmarks.faithfulness runs/faithfulness              train runs that do not exist yet, and measure
python -m benchmarks.faithfulness runs/faithfulness --no-write   the same, without writing results
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.korean import examples
from benchmarks.measure import RESULTS, environment
from regard import intervene
from regard.decoding import Greedy
from regard.evaluation import Links, agreement, bleu, faithfulness, score_links
from regard.tasks.translation import TranslationRun, load_translator, train_translation
from regard.training.settings import merged

__all__ = ["KINDS", "Kind", "Row", "measured", "spread", "table", "trained"]

SETTINGS: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 20_000, "held_out": 100},
    "training": {
        "steps": 1450,
        "batch_tokens": 800,
        "learning_rate": 6e-3,
        "warmup_steps": 50,
        "label_smoothing": 0.0,
    },
    "evaluation": {"sentences": 100},
}


@dataclass(frozen=True)
class Kind:
    """Settings of a kind of model. seeds: number of runs. even: train and test it with uniform attention."""

    settings: dict[str, Any]
    seeds: int = 2
    even: bool = False


BAHDANAU = {"model": {"name": "bahdanau", "width": 96, "dropout": 0.1}, "training": {"evaluate_every": 1450}}
KINDS: dict[str, Kind] = {
    "bahdanau": Kind(BAHDANAU),
    "bahdanau-guided": Kind(merged(BAHDANAU, {"training": {"guided_alignment": 0.3}})),
    "bahdanau-even": Kind(BAHDANAU, seeds=1, even=True),
    "luong": Kind(
        {
            "model": {"name": "luong", "width": 128, "dropout": 0.1, "cell": "lstm", "both_ways": True},
            "training": {"steps": 1500, "learning_rate": 4e-3, "warmup_steps": 100, "evaluate_every": 1500},
        }
    ),
    "transformer": Kind(
        {
            "model": {"name": "transformer", "size": "tiny", "dropout": 0.1},
            "training": {
                "steps": 500,
                "batch_tokens": 1600,
                "learning_rate": 2e-3,
                "warmup_steps": 120,
                "evaluate_every": 500,
            },
        }
    ),
}


COLUMNS = (
    *("model", "seeds", "BLEU", "AER %", "hidden", "random", "unknown", "random", "compr.", "suff."),
    *("tau", "uniform", "agree"),
)


@dataclass(frozen=True)
class Row:
    """One kind of model, or one site of it, with a number for each seed.

    bleu, error_rate (of alignments): in per
    cent. truth: the result of faithfulness(). agreement: for each pair of seeds, the share of target words
    for which both give the largest weight to the same source word. distance: the distance of their weights.
    """

    kind: str
    bleu: list[float]
    error_rate: list[float]
    truth: list[dict[str, Any]]
    distance: list[float]
    agreement: list[float]


def trained(folder: Path, name: str, seed: int) -> TranslationRun:
    """Return the run of this kind and seed; train it first if it does not exist."""
    kind, place = KINDS[name], folder / f"{name}-{seed}"
    settings = merged(merged(SETTINGS, kind.settings), {"seed": seed})
    with intervene(uniform=True, at="*cross") if kind.even else nullcontext():
        train_translation(settings, place, resume=True)
    return load_translator(place, search=Greedy(), precision="float32")


def measured(folder: Path, name: str, count: int) -> list[Row]:
    """Train a kind and test its attention: the mean over all cross-attention sites, and each site alone."""
    kind = KINDS[name]
    seeds = [trained(folder, name, seed) for seed in range(kind.seeds)]
    pairs = examples("test", count)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    gold = [Links(pair.sure, pair.possible) for pair in pairs]
    rows = []
    with intervene(uniform=True, at="*cross") if kind.even else nullcontext():
        said = [[found.text for found in each.translate(sources)] for each in seeds]
        scored = [each.score(sources, targets) for each in seeds]
        sites = list(scored[0][0].passages[0].attention)
        for at in ["*cross", *(sites if len(sites) > 1 else [])]:
            links = [[each.align(at).links for each in found] for found in scored]
            alike = [agreement(*pair, sources, targets, at=at) for pair in itertools.combinations(seeds, 2)]
            rows.append(
                Row(
                    name if at == "*cross" else f"{name}, {at}",
                    [bleu(each, targets).value for each in said],
                    [100 * score_links(each, gold).error_rate for each in links],
                    [faithfulness(each, sources, targets, at=at).written() for each in seeds],
                    [each.distance for each in alike],
                    [each.same for each in alike],
                )
            )
            print(f"{rows[-1].kind}: measured", flush=True)
    return rows


def spread(numbers: Sequence[float | None], digits: int) -> str:
    """Return the mean over seeds ± half of the difference between the largest and the smallest value.

    >>> spread([2.0, 2.5], 2), spread([0.001, -0.002], 2), spread([None], 2)
    ('2.25 ± 0.25', '0.00 ± 0.00', '')
    """
    known = [number for number in numbers if number is not None]
    if not known:
        return ""
    mean = f"{round(statistics.mean(known), digits) + 0.0:.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {(max(known) - min(known)) / 2:.{digits}f}"


def table(rows: list[Row], count: int) -> str:
    """Return a Markdown table with one row per model or site."""
    words = rows[0].truth[0]["words"]
    lines = [
        f"Decrease of the log-probability, in nats, of each of {words:,} target words of {count} test "
        f"sentences of the built-in corpus when the source word "
        "with the largest weight, or a random one, is removed. hidden: masked in all cross-attention layers "
        "while the target word is predicted. unknown: its token replaced by the unknown token. "
        "Comprehensiveness and sufficiency: in probability, over 10, 20 and 50 % of the words. tau: "
        "Kendall's rank correlation with gradient x input. uniform: decrease per word with uniform attention "
        "at these sites. Each number is the mean over seeds ± half of the difference between the largest and "
        "the smallest. agree: target words for which two seeds give the largest weight to the same word.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
    ]
    names = ("hidden", "hidden_random", "unknown", "unknown_random", "comprehensiveness", "sufficiency")
    for row in rows:
        numbers = [[each[name] for each in row.truth] for name in (*names, "kendall", "uniform")]
        shown = [spread(each, 2) for each in numbers]
        alike = f"{100 * statistics.mean(row.agreement):.0f} %" if row.agreement else ""
        line = (row.kind, f"{len(row.bleu)}", spread(row.bleu, 1), spread(row.error_rate, 1), *shown, alike)
        lines.append(f"| {' | '.join(line)} |")
    where = ", ".join(f"{name} {value}" for name, value in environment().items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> None:
    """Train and measure translators, and write a dated table to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="folder of the run folders; missing runs are trained")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds to measure (default: all)"
    )
    parser.add_argument("--sentences", type=int, default=100, help="number of test sentences (default: 100)")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")
    arguments = parser.parse_args()
    rows = [row for name in arguments.kinds for row in measured(arguments.folder, name, arguments.sentences)]
    text = table(rows, arguments.sentences)
    print("\n" + text)
    if not arguments.no_write:
        stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-faithfulness"
        found = {"environment": environment(), "rows": [asdict(row) for row in rows]}
        stem.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"Wrote {stem.name}.json and .md")


if __name__ == "__main__":
    main()
