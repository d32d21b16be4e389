"""Benchmark of statistical word aligners: regard align, eflomal and fast_align, on gold alignments.

python -m benchmarks.aligners --set deen-tatoeba --source test.de.gz --target test.en.gz --gold de-en.wa.gz \\
    --corpus eng-deu.txt.gz --columns 2,1 --fast-align build/fast_align

Each call measures one set and adds it to today's table. The aligners get the pairs of the corpus, tokenised
and lower-cased, and then the pairs of the gold set. The table shows the even lines of the gold sets. The
last choices of Regard's defaults were made on the odd lines, earlier ones with all lines in view. For the
other aligners, it shows the symmetrisation that is best on the even lines. eflomal is measured if it is
installed, fast_align if its program is named.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy

from benchmarks.measure import RESULTS, environment
from benchmarks.words import Words
from regard.data.read_text import read_lines
from regard.evaluation import SYMMETRISATIONS, Links, read_links, score_links, symmetrise

__all__ = ["Row", "interval", "main", "table"]

SAMPLES = 1000
EFLOMAL = """\
import sys
from eflomal import Aligner
sides = [open(path, encoding="utf-8").read().splitlines() for path in sys.argv[1:3]]
lengths = map(int, sys.argv[5:7])
Aligner(source_prefix_len=next(lengths), target_prefix_len=next(lengths)).align(*sides, *sys.argv[3:5])
"""
ABOUT = """\
Alignment error rate (Och and Ney 2003) in per cent, lower is better. The aligners get the training pairs,
tokenised and lower-cased, and the pairs of the gold set. Even lines of the gold set, with a 95 % interval
from 1,000 bootstrap samples of sentences. The defaults of Regard are the same for all languages. The last of
them were chosen on the odd lines, earlier ones with all lines in view. For eflomal and fast_align, the
symmetrisation is the one that is best on the even lines. eflomal with prefixes sees only the first four
letters of each word (of Korean words, two syllables). Time is CPU time of the whole process, for both
directions. Memory is its peak or, if that is larger, the memory of the benchmark that started it: small
values are upper bounds. fast_align was built from its source.
"""


@dataclass(frozen=True)
class Row:
    """One aligner on one set: error rates in per cent, CPU seconds, and peak memory in MB."""

    aligner: str
    links: str
    even: float
    low: float
    high: float
    odd: float
    seconds: float
    memory: int


def interval(links: Sequence[Links], gold: Sequence[Links]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the alignment error rate.

    >>> exact = [Links(frozenset({(0, 0)}))] * 9
    >>> interval(exact, exact)
    (0.0, 0.0)
    """
    scores = [score_links([a], [b]) for a, b in zip(links, gold, strict=True)]
    counts = numpy.array([(each.hits + each.sure_hits, each.proposed + each.sure) for each in scores])
    drawn = numpy.random.default_rng(0).integers(0, len(counts), (SAMPLES, len(counts)))
    hits, totals = counts[drawn].sum(1).T
    low, high = numpy.quantile(1 - hits / numpy.maximum(totals, 1), (0.025, 0.975))
    return float(low), float(high)


def measured(command: Sequence[str], output: Path | None = None) -> tuple[float, int]:
    """Run a program; return its CPU time in seconds, and its peak memory in MB."""
    with open(output or os.devnull, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return round(usage.ru_utime + usage.ru_stime, 1), usage.ru_maxrss // 1024


def row(
    name: str, links: str, found: Sequence[Links], gold: Sequence[Links], spent: tuple[float, int]
) -> Row:
    """Return the row of an aligner."""
    odd, even = slice(0, None, 2), slice(1, None, 2)
    rates = [100 * score_links(found[part], gold[part]).error_rate for part in (even, odd)]
    low, high = (100 * each for each in interval(found[even], gold[even]))
    even_rate, low, high, odd_rate = (round(each, 1) for each in (rates[0], low, high, rates[1]))
    return Row(name, links, even_rate, low, high, odd_rate, *spent)


def both_directions(
    name: str, paths: Sequence[Path], gold: Sequence[Links], spent: tuple[float, int], turn: bool
) -> Row:
    """Return the row of an aligner with two directions, with its best symmetrisation."""
    there, back = (read_links(path)[-len(gold) :] for path in paths)
    back = [each.turned() for each in back] if turn else back
    rows = []
    for how in SYMMETRISATIONS:
        found = [symmetrise(a, b, how) for a, b in zip(there, back, strict=True)]
        rows.append(row(name, how, found, gold, spent))
    return min(rows, key=lambda each: each.even)


def compare(arguments: argparse.Namespace) -> list[Row]:
    """Return a row for each aligner."""
    words, gold = Words(tokenise=True, lowercase=True), read_links(arguments.gold, arguments.base)
    sides: list[list[str]] = [[], []]
    if arguments.corpus:
        if arguments.columns:
            columns = [int(each) - 1 for each in arguments.columns.split(",")]
            rows = [line.split("\t") for line in read_lines(arguments.corpus[0])]
            texts: list[Sequence[str]] = [[each[column] for each in rows] for column in columns]
        else:
            texts = [list(read_lines(path)) for path in arguments.corpus]
        sides = [[" ".join(words.of(line)) for line in side] for side in texts]
    for side, path in zip(sides, (arguments.source, arguments.target), strict=True):
        side += [" ".join(words.given(line)) for line in read_lines(path)]
    result = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("a", "b", "a-b", "b-a", "both")]
        for path, side in zip(files, sides, strict=False):
            path.write_text("".join(f"{line}\n" for line in side), "utf-8")
        pair = [str(path) for path in files[:2]]
        regard = [sys.executable, "-m", "regard", "align", "--source", pair[0], "--target", pair[1]]
        for how in ("mean", "grow-diag-final-and"):
            spent = measured([*regard, "--symmetrise", how, "--threads", "1"], files[4])
            result.append(row("regard align", how, read_links(files[4])[-len(gold) :], gold, spent))
            print(result[-1], flush=True)
        paths = files[2:4]
        names = [str(path) for path in paths]
        if find_spec("eflomal") is not None:
            for lengths in ("0,0", arguments.prefixes):
                spent = measured([sys.executable, "-c", EFLOMAL, *pair, *names, *lengths.split(",")])
                name = "eflomal" if lengths == "0,0" else f"eflomal, prefixes of {lengths} letters"
                result.append(both_directions(name, paths, gold, spent, turn=False))
                print(result[-1], flush=True)
        if arguments.fast_align:
            together = " ||| ".join
            files[4].write_text("".join(f"{together(each)}\n" for each in zip(*sides, strict=True)), "utf-8")
            options = [arguments.fast_align, "-i", str(files[4]), "-d", "-o", "-v"]
            first = measured(options, paths[0])
            second = measured([*options, "-r"], paths[1])
            spent = round(first[0] + second[0], 1), max(first[1], second[1])
            result.append(both_directions("fast_align", paths, gold, spent, turn=False))
            print(result[-1], flush=True)
    return result


def table(sets: dict[str, Any]) -> str:
    """Return the Markdown page with all sets."""
    lines = [ABOUT, "| set | aligner | links | AER | interval | odd lines | CPU s | MB |"]
    lines.append("| --- | --- | --- | ---: | --- | ---: | ---: | ---: |")
    for name, each in sets.items():
        for own in each["rows"]:
            rates = f"{own['even']:.1f} | {own['low']:.1f} to {own['high']:.1f} | {own['odd']:.1f}"
            spent = f"{own['seconds']:.1f} | {own['memory']:,}"
            lines.append(f"| {name} | {own['aligner']} | {own['links']} | {rates} | {spent} |")
    last: Callable[[dict[str, Any]], str] = lambda each: ", ".join(f"{k} {v}" for k, v in each.items())  # noqa: E731
    lines.append("")
    for name, each in sets.items():
        lines.append(f"{name}: {each['note']}")
    lines.append(f"\nMeasured on: {last(next(iter(sets.values()))['environment'])}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the aligners on one set, and add it to today's table in benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aligners", description=main.__doc__)
    parser.add_argument("--set", required=True, help="name of the set in the table")
    parser.add_argument("--note", default="", help="what the set is, for the table")
    parser.add_argument("--source", required=True), parser.add_argument("--target", required=True)
    parser.add_argument("--gold", required=True)
    parser.add_argument("--base", type=int, default=0, help="number of the first word in --gold, 0 or 1")
    parser.add_argument("--corpus", nargs="+", help="training pairs: two parallel files, or one with columns")
    parser.add_argument("--columns", help="source and target column of --corpus, from 1, such as 2,1")
    parser.add_argument("--prefixes", default="4,4", help="prefix lengths of eflomal (default: 4,4)")
    parser.add_argument("--fast-align", help="path of the program fast_align")
    arguments = parser.parse_args()
    rows = compare(arguments)
    stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-aligners"
    path = stem.with_suffix(".json")
    sets = json.loads(path.read_text()) if path.exists() else {}
    sets[arguments.set] = {
        "note": arguments.note,
        "rows": [asdict(each) for each in rows],
        "environment": environment(),
    }
    path.write_text(json.dumps(sets, indent=2) + "\n")
    stem.with_suffix(".md").write_text(table(sets))
    print(f"Wrote {stem.name}.json and .md")


if __name__ == "__main__":
    main()
