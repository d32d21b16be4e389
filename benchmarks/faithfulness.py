"""Which attention can be believed: translators of each kind trained on the built-in corpus, and then tried.

python -m benchmarks.faithfulness runs/faithfulness              train what is not there yet, and measure
python -m benchmarks.faithfulness runs/faithfulness --no-write   the same, and write no result
"""

from __future__ import annotations

import argparse
import datetime
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.korean import examples
from benchmarks.measure import RESULTS, environment
from regard import intervene
from regard.decoding import Greedy, Translator
from regard.evaluation import Links, agreement, bleu, faithfulness, score_links
from regard.tasks.translation import load_translator, train_translation
from regard.training.settings import merged

__all__ = ["KINDS", "Kind", "Row", "measured", "table", "trained"]

SETTINGS: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 20_000, "held_out": 100},
    "training": {"steps": 1450, "tokens": 800, "rate": 6e-3, "warm_up": 50, "smoothing": 0.0},
    "evaluation": {"sentences": 100},
}


@dataclass(frozen=True)
class Kind:
    """How a model is made and trained; seeds: how often. even: with its attention held even all the while."""

    settings: dict[str, Any]
    seeds: int = 1
    even: bool = False


BAHDANAU = {"model": {"name": "bahdanau", "width": 96, "dropout": 0.1}, "training": {"evaluate_every": 1450}}
KINDS: dict[str, Kind] = {
    "bahdanau": Kind(BAHDANAU, seeds=2),
    "bahdanau-guided": Kind(merged(BAHDANAU, {"training": {"guided": 0.3}})),
    "bahdanau-even": Kind(BAHDANAU, even=True),
    "luong": Kind(
        {
            "model": {"name": "luong", "width": 128, "dropout": 0.1, "cell": "lstm", "both_ways": True},
            "training": {"steps": 1500, "rate": 4e-3, "warm_up": 100, "evaluate_every": 1500},
        }
    ),
    "transformer": Kind(
        {
            "model": {"name": "transformer", "size": "tiny", "dropout": 0.1},
            "training": {"steps": 500, "tokens": 1600, "rate": 2e-3, "warm_up": 120, "evaluate_every": 500},
        }
    ),
}


@dataclass(frozen=True)
class Row:
    """One model, or one site of it: BLEU and alignment error rate in per cent, and what faithfulness() says.

    agreement: with the next seed, the share of words for which both look most at one word.
    """

    kind: str
    bleu: float
    error_rate: float
    truth: dict[str, Any]
    distance: float | None = None
    agreement: float | None = None


def trained(folder: Path, name: str, seed: int) -> Translator:
    """The run of this kind and seed, trained if it is not there."""
    kind, place = KINDS[name], folder / f"{name}-{seed}"
    given = merged(merged(SETTINGS, kind.settings), {"seed": seed})
    with intervene(uniform=True, at="*cross") if kind.even else nullcontext():
        train_translation(given, place, resume=True)
    return load_translator(place, search=Greedy())


def measured(folder: Path, name: str, count: int) -> list[Row]:
    """Train a kind, and try its attention: of all sites together, and of each where there are several."""
    kind, pairs = KINDS[name], examples("test", count)
    seeds = [trained(folder, name, seed) for seed in range(kind.seeds)]
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    gold = [Links(pair.sure, pair.possible) for pair in pairs]
    rows = []
    with intervene(uniform=True, at="*cross") if kind.even else nullcontext():
        said = [each.text for each in seeds[0].translate(sources)]
        scored = seeds[0].score(sources, targets)
        sites = list(scored[0].passages[0].attention)
        for at in ["*cross", *(sites if len(sites) > 1 else [])]:
            links = [each.align(at).links for each in scored]
            other = agreement(*seeds[:2], sources, targets, at=at) if len(seeds) > 1 else None
            rows.append(
                Row(
                    name if at == "*cross" else f"{name}, {at}",
                    bleu(said, targets).value,
                    100 * score_links(links, gold).error_rate,
                    faithfulness(seeds[0], sources, targets, at=at).written(),
                    other and other.distance,
                    other and other.same,
                )
            )
    return rows


def table(rows: list[Row], count: int) -> str:
    """One row a model or site."""
    words = rows[0].truth["words"]
    lines = [
        f"Cost in nats of erasing, for each of {words:,} target words of {count} test sentences, the source "
        "word looked at most, or another drawn at random. Hidden: masked at all cross sites while that word "
        "is said. Unknown: its token replaced. Comprehensiveness and sufficiency in probability, over 10, 20 "
        "and 50 % of the words. tau: Kendall's, with gradient x input. Even: the cost a word of even "
        "attention at these sites. Seeds: words for which two seeds look most at the same word.",
        "",
        "| model | BLEU | AER | hidden | random | unknown | random | compr. | suff. | tau | even | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = ("hidden", "hidden_random", "unknown", "unknown_random", "comprehensiveness", "sufficiency")
    for row in rows:
        numbers = [row.truth[name] for name in (*names, "kendall", "uniform")]
        shown = ["" if number is None else f"{round(number, 2) + 0.0:.2f}" for number in numbers]
        seeds = "" if row.agreement is None else f"{100 * row.agreement:.0f} %"
        line = (row.kind, f"{row.bleu:.1f}", f"{row.error_rate:.1f} %", *shown, seeds)
        lines.append(f"| {' | '.join(line)} |")
    where = ", ".join(f"{name} {value}" for name, value in environment().items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> None:
    """Train and measure, and write a dated table into benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are, or will be")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="which are measured")
    parser.add_argument("--sentences", type=int, default=100, help="how many of the test sentences")
    parser.add_argument("--no-write", action="store_true", help="print the table, write no result file")
    given = parser.parse_args()
    rows = [row for name in given.kinds for row in measured(given.folder, name, given.sentences)]
    text = table(rows, given.sentences)
    print("\n" + text)
    if not given.no_write:
        stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-faithfulness"
        found = {"environment": environment(), "rows": [asdict(row) for row in rows]}
        stem.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"written: {stem.name}.json and .md")


if __name__ == "__main__":
    main()
