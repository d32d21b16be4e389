"""What a user gets on a CPU, beside other software: python -m benchmarks.cpu [--output FOLDER].

Each part first checks that both sides agree, then measures them in turns in this process, with one thread and
by CPU time, because other programs may use the cores. The part `threads` measures wall time while a busy loop
runs on each core. With --output, the rows replace those of the same part in the newest result file; the other
parts keep their rows and their dates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.call_pairs import Pair, pairs
from benchmarks.call_time import measured
from benchmarks.cpu_pairs import cpu_pairs
from benchmarks.decoding import CASES, measure
from benchmarks.measure import environment, write_results
from regard.data import korean_english
from regard.data.tokenizers import train_tokenizer
from regard.runs.cpu_threads import choose_threads

KIND = "cpu-table"
SENTENCES, VOCABULARY = 20_000, 4_000
"""Number of sentences that are encoded, and size of the vocabulary."""

MOST_BUSY = 120.0
"""A translation on a busy machine is stopped after this many seconds."""


@dataclass(frozen=True)
class Row:
    """A measurement: seconds of Regard and of a peer for the same work. Both agree on the result.

    what: the work.
    peer: what the user would write instead, or the other program.
    """

    what: str
    ours: float
    theirs: float
    peer: str

    @property
    def ratio(self) -> float:
        """How long Regard takes, relative to the peer."""
        return self.ours / self.theirs


CALLS = (
    "plain, S=32",
    "padding, S=32",
    "MultiHead, self-attention",
    "dropout, 16,8,128,64",
    "float bias, 1,2,16,16",
    "float bias, 4,8,256,64",
    "window 256, 1,8,4096,64",
    "documents, 1,8,1024,64",
    "ALiBi, 1,8,512,64",
    "Sparse, 1,4,2048,64",
    "additive step from a Memory, 64,50,256",
    "look, weights, 1,8,128,64",
    "look, alignment, entropy and mass, 1,8,128,64",
)
"""The rows of benchmarks.call_time that this table has. Shapes are B,H,T,D, for the Memory B,S,A."""


def calls(seconds: float) -> Iterator[Row]:
    """Attention calls; with gradients, the rows of cpu_pairs() include the backward pass."""
    for gradients in (False, True):
        passes = (", building a graph", ", forward and backward") if gradients else ("", "")
        for found, suffix in zip((pairs("cpu", gradients), cpu_pairs(gradients)), passes, strict=True):
            for pair in found:
                if pair.name in CALLS:
                    yield _call(pair, seconds, suffix)


def _call(pair: Pair, seconds: float, passes: str) -> Row:
    (row,) = measured(pair, "cpu", seconds)
    return Row(f"{pair.name}{passes}", row.ours / 1e6, row.theirs / 1e6, "PyTorch")


def encoding(seconds: float) -> Iterator[Row]:
    """Encode lines with a subword tokenizer, beside sentencepiece with the same model."""
    examples = list(korean_english("train", SENTENCES))
    for side, lines in (
        ("Korean", [each.source for each in examples]),
        ("English", [each.target for each in examples]),
    ):
        for kind in ("unigram", "bpe"):
            tokenizer = train_tokenizer(kind, lines, size=VOCABULARY)
            library = tokenizer._processor  # type: ignore[attr-defined]
            assert tokenizer.encode_lines(lines) == library.encode(lines)
            both = partial(tokenizer.encode_lines, lines), partial(library.encode, lines)
            ours, theirs = in_turns(*both, seconds=seconds)
            yield Row(f"encode {SENTENCES:,} {side} sentences, {kind}", ours, theirs, "sentencepiece")


def in_turns(*calls: Callable[[], object], seconds: float) -> list[float]:
    """Return the CPU seconds of the fastest run of each function; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    begun = time.perf_counter()
    while len(times[0]) < 5 or time.perf_counter() - begun < seconds * len(calls):
        for call, taken in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return [min(each) for each in times]


def decoding(seconds: float) -> Iterator[Row]:
    """Beam and greedy search with random weights, beside Hugging Face's generate() or a loop in PyTorch."""
    peers = ["regard", "Hugging Face, sdpa", "plain PyTorch"]
    for name, case in CASES["cpu"].items():
        found = measure(name, case, "cpu", seconds, peers, together=True)
        rates = {row["peer"]: row["tokens per CPU second"] for row in found["rows"] if "seconds" in row}
        for peer in rates.keys() - {"regard"}:
            model = f"{case.model} {case.size}, {case.batch} x beam {case.beams}, one token"
            yield Row(model, 1 / rates["regard"], 1 / rates[peer], peer)


def threads(seconds: float) -> Iterator[Row]:
    """Translate while a busy loop runs on each core: wall time, with the chosen number of threads."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        ours, theirs = _busy(True), _busy(False)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    case = CASES["cpu"]["bahdanau-16"]
    what = f"{case.model} {case.size}, {case.batch} x beam {case.beams}, wall time while all cores are busy"
    yield Row(what, ours, theirs, f"as many threads as cores{', stopped' if theirs >= MOST_BUSY else ''}")


def _busy(choose: bool) -> float:
    """Return the wall seconds of translating in a new process with as many threads as cores."""
    settings = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "benchmarks.cpu", "--translate", "chosen" if choose else "default"]
    try:
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, check=True, timeout=MOST_BUSY
        )
    except subprocess.TimeoutExpired:
        return MOST_BUSY
    return float(done.stdout)


def translate(choose: bool) -> float:
    """Return the wall seconds of a search in this process, with the choice of threads if `choose` is set."""
    from regard.decoding import search

    case = CASES["cpu"]["bahdanau-16"]
    model, batch = case.build("float32", "cpu"), case.sources("cpu")
    start = time.perf_counter()
    if choose:
        choose_threads("cpu", short=True)
    search(model, batch, case.how, look=None)
    return time.perf_counter() - start


PARTS: dict[str, Callable[[float], Iterator[Row]]] = {
    "decoding": decoding,
    "threads": threads,
    "encoding": encoding,
    "calls": calls,
}
"""What is measured, by name: a function of the measuring time for each row, in seconds, that yields rows."""


def duration(seconds: float) -> str:
    """Return a duration with three digits.

    >>> duration(0.0123), duration(4.5e-6)
    ('12.3 ms', '4.5 µs')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def table(found: dict[str, Any]) -> str:
    """Return the record as Markdown, a table for each part; ✗ marks the rows in which a peer is faster."""
    lines = []
    for name, part in found["parts"].items():
        lines += [f"**{name}**, measured on {part['date']}:", ""]
        lines += ["| what | Regard | others | Regard / others |", "| --- | --- | --- | --- |"]
        for each in part["rows"]:
            row = Row(**each)
            lost = " ✗" if row.ratio > 1.005 else ""
            cells = f"{duration(row.ours)} | {duration(row.theirs)}, {row.peer} | {row.ratio:.2f}"
            lines.append(f"| {row.what}{lost} | {cells} |")
        where = ", ".join(f"{key} {value}" for key, value in part["environment"].items())
        lines += ["", f"Measured on: {where}.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part [default: all]")
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time per row [default: 0.5]")
    parser.add_argument("--output", type=Path, help="folder of the result files [default: only print]")
    parser.add_argument("--translate", choices=("chosen", "default"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.translate:
        print(translate(arguments.translate == "chosen"))
        return 0
    torch.set_num_threads(1)
    today = f"{datetime.date.today()}"
    found: dict[str, Any] = {"parts": {}}
    if arguments.output and (files := sorted(arguments.output.glob(f"????-??-??-{KIND}.json"))):
        found = json.loads(files[-1].read_text(encoding="utf-8"))
    for name in arguments.part or PARTS:
        load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        where = environment() | {"threads": "1", "load average": load}
        rows = [asdict(row) for row in PARTS[name](arguments.seconds)]
        found["parts"][name] = {"date": today, "environment": where, "rows": rows}
        found["parts"] = {each: found["parts"][each] for each in PARTS if each in found["parts"]}
        if arguments.output:
            head = f"# Regard on a CPU, {today}\n\n`python -m benchmarks.cpu`: ✗ where a peer is faster.\n"
            write_results(arguments.output, f"{today}-{KIND}", found, f"{head}\n{table(found)}")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
