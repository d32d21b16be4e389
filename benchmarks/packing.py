"""Packing: how much faster a training step of a Transformer would be if batches had no padding.

python -m benchmarks.packing --into FOLDER measures captured training steps on a CUDA device, alternately:

- padded: sentences of different lengths, padded to the longest one, as Regard's batches are.
- without padding: fewer sentences, all of the full length, with the same number of tokens.

The second step processes as many tokens as a packed batch would. A packed batch also needs a mask that
separates its sentences, so the difference is an upper bound of the time that packing can save.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import environment, write_results
from benchmarks.training_speed import Training, our_loss
from regard.data.batch import EOS, Batch
from regard.models.base import Model
from regard.models.transformer import Size, Transformer

__all__ = ["CASES", "Case", "table"]


@dataclass(frozen=True)
class Case:
    """A Transformer, and the size of its padded batches.

    size: "base", or "small": 3 + 3 layers of width 256, as in the recipe for Multi30k.
    words: vocabulary size.
    rows, length: number of sentences of the padded batch, and of tokens of the longest one.
    padding: fraction of its tokens that are padding.
    """

    size: str
    words: int
    rows: int
    length: int
    padding: float

    def build(self) -> Model:
        """Return the model with random weights, on the GPU."""
        torch.manual_seed(0)
        size = Size(width=256, heads=4, inner=512, layers=3) if self.size == "small" else self.size
        with torch.device("cuda"):
            return Transformer(self.words, self.words, size, tie="all", dropout=0.1)

    def batch(self, seed: int, padded: bool) -> Batch:
        """Return a batch of random pairs; both kinds have about the same number of tokens without padding."""
        generator = torch.Generator().manual_seed(seed)
        if padded:
            # Uniform lengths, whose mean is (1 - padding) * length; the first sentence has the full length.
            shortest = round(self.length * (1 - 2 * self.padding))
            lengths = torch.randint(shortest, self.length + 1, (2, self.rows), generator=generator)
            lengths[:, 0] = self.length
        else:
            lengths = torch.full((2, round(self.rows * (1 - self.padding))), self.length)
        sides = [
            [
                torch.randint(EOS + 1, self.words, (size - 1,), generator=generator).tolist()
                for size in side.tolist()
            ]
            for side in lengths
        ]
        return Batch.collate(*sides)


CASES = {
    "small, 256 x 32": Case("small", 8000, 256, 32, 0.11),
    "small, 512 x 16": Case("small", 8000, 512, 16, 0.11),
    "base, 256 x 32": Case("base", 32000, 256, 32, 0.11),
    "base, 512 x 64": Case("base", 32000, 512, 64, 0.11),
}


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """Return the time of a step with padding and without it, and the number of target tokens of each."""
    ways = dict[str, Training]()
    for way in ("padded", "without padding"):
        batches = [case.batch(seed, way == "padded") for seed in range(4)]
        model = case.build().train()
        ways[way] = Training(model, our_loss(model), batches, "bfloat16", by_trainer=True)
        ways[way].capture()
    taken: dict[str, list[float]] = {way: [] for way in ways}
    begun = time.perf_counter()
    while len(taken["padded"]) < 5 or time.perf_counter() - begun < seconds:
        for way, training in ways.items():
            training.step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(20):
                training.step()
            torch.cuda.synchronize()
            taken[way].append((time.perf_counter() - start) / 20 * 1000)
    row: dict[str, Any] = {"case": asdict(case), "runs": len(taken["padded"])}
    for way, training in ways.items():
        hosts = training.hosts  # source, source lengths, target, target lengths, index
        tokens = statistics.fmean(float(host[3].sum()) for host in hosts)
        row[way] = {"milliseconds": statistics.median(taken[way]), "tokens": tokens}
    return row


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "`python -m benchmarks.packing`: captured training steps of Transformers in bfloat16, with batches",
        "padded to the longest sentence, and with batches without padding of the same number of tokens. Wall",
        "time, median. The gain is in target tokens per second, an upper bound of the gain of packing.",
        "",
        "| case | padding | ms, padded | ms, without padding | gain |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in record["rows"].items():
        padded, full = row["padded"], row["without padding"]
        slots = row["case"]["rows"] * row["case"]["length"]
        ratio = (padded["milliseconds"] / padded["tokens"]) / (full["milliseconds"] / full["tokens"])
        cells = [name, f"{1 - padded['tokens'] / slots:.1%}", f"{padded['milliseconds']:.3f}"]
        cells += [f"{full['milliseconds']:.3f}", f"{ratio - 1:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    where = ", ".join(f"{name} {value}" for name, value in record["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> None:
    """Measure training steps with padding and without it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=main.__doc__)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the result files")
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per case")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), help="names of cases")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    where = environment() | {"gpu": torch.cuda.get_device_name()}
    record: dict[str, Any] = {"date": f"{datetime.date.today()}", "environment": where, "rows": {}}
    for name in arguments.only:
        record["rows"][name] = measured(CASES[name], arguments.seconds)
        print(f"{name}: {json.dumps(record['rows'][name])}", flush=True)
        if arguments.into:
            write_results(arguments.into, f"{record['date']}-packing", record, table(record))
    print("\n" + table(record))


if __name__ == "__main__":
    main()
