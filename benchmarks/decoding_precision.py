"""Benchmark of translation from text to text with a trained run: BLEU and time for each precision.

python -m benchmarks.decoding_precision RUN SOURCE REFERENCE --device cuda translates the lines of SOURCE with
float32, bfloat16 and float16 weights (on a CPU: float32, bfloat16 and int8), and with the simple search in
float32. Tokenizing and detokenizing are included. It prints BLEU against REFERENCE, sentences per second of
wall time and of CPU time, and the share of translations that are equal to those in float32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import regard
from benchmarks.decoding import SIMPLE
from benchmarks.measure import require_device
from regard.decoding import Beam
from regard.evaluation.bleu import bleu

PRECISIONS = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "bfloat16", "float16")}


def measured(
    folder: Path, device: str, precision: str, simple: bool, lines: list[str], repeats: int
) -> dict[str, Any]:
    """Return the translations of the lines, and the median wall and CPU time of a translation of all."""
    options: dict[str, Any] = {"precision": precision, "search": Beam(5), "look": None}
    translator = regard.load(folder, device=device, **options)
    taken, busy = [], []
    with mock.patch(SIMPLE, lambda *_: ["the simple search is measured"]) if simple else nullcontext():
        for _ in range(repeats + 1):
            start, start_cpu = time.perf_counter(), time.process_time()
            texts = [each.text for each in translator.translate(lines)]
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
            busy.append(time.process_time() - start_cpu)
    times = {"wall": statistics.median(taken[1:] or taken), "cpu": statistics.median(busy[1:] or busy)}
    return {"texts": texts, **times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder of a translator")
    parser.add_argument("source", type=Path, help="text file to translate, one sentence per line")
    parser.add_argument("reference", type=Path, help="text file with the reference translations")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--lowercase", action="store_true", help="ignore case in BLEU")
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed translations of all lines, after one that is not timed"
    )
    parser.add_argument("--no-simple", action="store_true", help="leave out the simple search")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    try:
        lines, references = (
            path.read_text(encoding="utf-8").splitlines() for path in (arguments.source, arguments.reference)
        )
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    if len(lines) != len(references):
        parser.error(f"source has {len(lines)} lines, reference has {len(references)}")
    first: list[str] = []
    print("| search | precision | BLEU | sentences/s | per CPU second | equal to float32 |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = [(precision, False) for precision in PRECISIONS[arguments.device]]
    rows += [] if arguments.no_simple else [("float32", True)]
    for precision, simple in rows:
        found = measured(arguments.run, arguments.device, precision, simple, lines, arguments.repeats)
        first = first or found["texts"]
        score = bleu(found["texts"], references, lowercase=arguments.lowercase).value
        equal = statistics.mean(one == two for one, two in zip(found["texts"], first, strict=True))
        name = "simple" if simple else "slots"
        rates = " | ".join(f"{len(lines) / found[kind]:,.0f}" for kind in ("wall", "cpu"))
        print(f"| {name} | {precision} | {score:.2f} | {rates} | {equal:.1%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
