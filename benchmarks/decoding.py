"""Benchmark of decoding: tokens per second of beam search and greedy search, compared with other libraries.

python -m benchmarks.decoding [--device cuda] [--into FOLDER] first checks that the search returns the
hypotheses of the simple search, then measures wall time. The models have random weights. Every output has 32
tokens, so that all peers compute the same number of steps; tokens per second counts the best hypothesis only.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import fnmatch
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.decoding_peers import eager_beam_search, hugging_face
from benchmarks.measure import environment, require_device, write_results
from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, search
from regard.models.bahdanau import Bahdanau
from regard.models.base import Model
from regard.models.transformer import Transformer
from regard.options.transformer_options import SIZES

LENGTH, SOURCE = 32, 20
SIMPLE = "regard.decoding.search.search_decoder"


@dataclass(frozen=True)
class Case:
    """A model and a search to measure.

    model: "transformer" or "bahdanau".
    size: the name of a Size, or the width of the states.
    words: vocabulary size.
    batch: number of sentences.
    beams: beam size; 1 is greedy search.
    dtypes: names of the dtypes of the weights.
    """

    model: str
    size: str
    words: int
    batch: int
    beams: int
    dtypes: tuple[str, ...] = ("float32",)

    @property
    def how(self) -> Beam | Greedy:
        rules = Rules(minimum=LENGTH, maximum=LENGTH)
        return Greedy(rules) if self.beams == 1 else Beam(self.beams, rules=rules)

    def build(self, dtype: str, device: str) -> Model:
        """Return the model with random weights, the same each time."""
        return copy.deepcopy(initial(self.model, self.size, self.words)).to(device, getattr(torch, dtype))

    def sources(self, device: str) -> Batch:
        """Return random sources of 20 tokens, EOS included."""
        ids = torch.randint(
            4, self.words, (self.batch, SOURCE - 1), generator=torch.Generator().manual_seed(1)
        )
        return Batch.collate(ids.tolist()).to(device)


@functools.cache
def initial(model: str, size: str, words: int) -> Model:
    """Return a model with random weights on the CPU; for the arguments, see Case."""
    torch.manual_seed(0)
    if model == "transformer":
        return Transformer(words, words, size).eval()
    embedding, width = map(int, size.split("/"))
    return Bahdanau(words, words, width, embedding=embedding).eval()


HALF = ("float32", "bfloat16", "float16")
CASES = {
    "cpu": {
        "transformer-1": Case("transformer", "small", 8000, 1, 5),
        "transformer-1-greedy": Case("transformer", "small", 8000, 1, 1),
        "transformer-16": Case("transformer", "small", 8000, 16, 5),
        "bahdanau-1": Case("bahdanau", "256/256", 8000, 1, 5),
        "bahdanau-16": Case("bahdanau", "256/256", 8000, 16, 5),
    },
    "cuda": {
        "transformer-64": Case("transformer", "base", 32000, 64, 5, HALF),
        "transformer-256": Case("transformer", "base", 32000, 256, 5, HALF),
        "transformer-1-greedy": Case("transformer", "base", 32000, 1, 1, HALF),
        "transformer-64-greedy": Case("transformer", "base", 32000, 64, 1, HALF),
        "bahdanau-64": Case("bahdanau", "620/1000", 30000, 64, 5, HALF),
        "bahdanau-256": Case("bahdanau", "620/1000", 30000, 256, 5, HALF),
    },
}


def ours(model: Model, case: Case, batch: Batch, look: str | None = None) -> Callable[[], Any]:
    """Return a call of search()."""
    return lambda: search(model, batch, case.how, look=look)


def aligned(model: Model, case: Case, batch: Batch) -> Callable[[], object]:
    """Return a call of search() that also reads the alignment of every hypothesis."""
    call = ours(model, case, batch, "cross")
    return lambda: [each.alignment for hypotheses in call() for each in hypotheses]


def read(model: Model, case: Case, batch: Batch) -> Callable[[], object]:
    """Return a call of search() that also reads the attention of every hypothesis."""
    call = ours(model, case, batch, "cross")
    return lambda: [each.attention for hypotheses in call() for each in hypotheses]


def simple(model: Model, case: Case, batch: Batch) -> Callable[[], Any]:
    """Return a call of the simple search."""

    def run() -> object:
        with mock.patch(SIMPLE, lambda *_: ["the simple search is measured"]):
            return search(model, batch, case.how, look=None)

    return run


def check(case: Case, device: str) -> float:
    """Return the share of sentences whose hypothesis is that of the simple search, in float64.

    Four sentences: float64 is slow. With random weights, hypotheses are close, so that float32 rounding could
    change their order.
    """
    few = Case(case.model, case.size, case.words, min(case.batch, 4), case.beams)
    model, batch = few.build("float64", device), few.sources(device)
    pairs = zip(search(model, batch, few.how, look=None), simple(model, few, batch)(), strict=True)
    return statistics.mean(
        one.tokens == two.tokens and abs(one.score - two.score) < 1e-3 for (one, *_), (two, *_) in pairs
    )


def agreement(model: Model, case: Case, batch: Batch) -> float:
    """Return the share of sentences whose tokens are those of the simple search, in the dtype measured."""
    pairs = zip(search(model, batch, case.how, look=None), simple(model, case, batch)(), strict=True)
    return statistics.mean(one.tokens == two.tokens for (one, *_), (two, *_) in pairs)


def peers(case: Case, device: str) -> Iterator[tuple[str, str, Callable[[], Callable[[], object] | None]]]:
    """Yield name, dtype and a function that returns the call to measure, or None if it cannot run here."""
    batch = case.sources(device)
    for dtype in case.dtypes:
        model = case.build(dtype, device)
        yield "regard", dtype, functools.partial(ours, model, case, batch)
        if device == "cpu":
            rounded = case.build(dtype, device)
            rounded.int8_steps = True
            yield "regard, int8", dtype, functools.partial(ours, rounded, case, batch)
        yield "regard, look='cross'", dtype, functools.partial(ours, model, case, batch, "cross")
        yield "regard, look='cross', alignments", dtype, functools.partial(aligned, model, case, batch)
        yield "regard, look='cross', read", dtype, functools.partial(read, model, case, batch)
        yield "regard, simple search", dtype, functools.partial(simple, model, case, batch)
        if case.model == "transformer":
            for way in ("sdpa", "eager") if case.beams > 1 else ("sdpa",):
                yield (
                    f"Hugging Face, {way}",
                    dtype,
                    functools.partial(hugging_face_call, case, batch, dtype, way),
                )
        elif isinstance(model, Bahdanau):
            yield (
                "plain PyTorch",
                dtype,
                functools.partial(eager_beam_search, model, batch, case.beams, LENGTH),
            )


def hugging_face_call(case: Case, batch: Batch, dtype: str, attention: str) -> Callable[[], object] | None:
    """Return a call of generate(), or None without transformers."""
    sizes = SIZES[case.size], case.words, batch, case.beams, LENGTH
    return hugging_face(*sizes, getattr(torch, dtype), attention)


def seconds_of(
    calls: list[Callable[[], object]], device: str, budget: float
) -> list[tuple[list[float], list[float]]]:
    """Return wall times and CPU times of each call. The calls alternate, and each runs at least 3 times.

    budget: measuring time for each call in seconds, approximately.
    """
    taken = [(list[float](), list[float]()) for _ in calls]
    with torch.no_grad():
        for call in calls:
            call()
        begun = time.perf_counter()
        while len(taken[0][0]) < 3 or time.perf_counter() - begun < budget * len(calls):
            for call, (wall, busy) in zip(calls, taken, strict=True):
                if device == "cuda":
                    torch.cuda.synchronize()
                start, start_cpu = time.perf_counter(), time.process_time()
                call()
                if device == "cuda":
                    torch.cuda.synchronize()
                wall.append(time.perf_counter() - start)
                busy.append(time.process_time() - start_cpu)
    return taken


def measure(
    name: str, case: Case, device: str, budget: float, only: list[str], together: bool
) -> dict[str, Any]:
    """Return a record of one case: the check, and a row for each peer.

    only: the names of the peers to measure, with * as wildcard; empty for all.
    together: measure all peers alternately on a GPU too.
    """
    same = check(case, device)
    record: dict[str, Any] = {"case": asdict(case), "same hypotheses, float64": same, "rows": []}
    if same < 1:
        print(f"{name}: the check failed: {same:.0%} of the hypotheses are the same", file=sys.stderr)
        return record
    for dtype in case.dtypes:
        share = agreement(case.build(dtype, device), case, case.sources(device))
        record[f"same tokens, {dtype}"] = share
    built = list[tuple[str, str, Callable[[], object]]]()
    for peer, dtype, build in peers(case, device):
        if only and not any(fnmatch.fnmatch(peer, each) for each in only):
            continue
        call = build()
        if call is None:
            record["rows"].append({"peer": peer, "dtype": dtype, "missing": "transformers is not installed"})
            continue
        built.append((peer, dtype, call))
        # One after the other on a GPU: the models of all peers may need too much memory.
        if device == "cuda" and not together:
            record["rows"] += rows_of(name, case, device, budget, [built.pop()])
    record["rows"] += rows_of(name, case, device, budget, built)
    return record


def rows_of(
    name: str, case: Case, device: str, budget: float, built: list[tuple[str, str, Callable[[], object]]]
) -> list[dict[str, Any]]:
    """Measure peers alternately, and return a row for each. built: name, dtype and call of each peer."""
    rows, tokens = [], case.batch * LENGTH
    times = seconds_of([call for *_, call in built], device, budget) if built else []
    for (peer, dtype, _), (taken, busy) in zip(built, times, strict=True):
        rate = tokens / statistics.median(taken)
        row: dict[str, Any] = {"peer": peer, "dtype": dtype, "runs": len(taken), "seconds": taken}
        row |= {"tokens/s": rate, "best tokens/s": tokens / min(taken)}
        rows.append(row | {"tokens per CPU second": tokens / statistics.median(busy)})
        print(f"{name}, {peer}, {dtype}: {rate:,.0f} tokens/s", file=sys.stderr, flush=True)
    return rows


def table(found: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "Decoding, 32 tokens per output, sources of 20 tokens, random weights. Tokens per second of wall",
        "time (median of all calls, and fastest call) and of CPU time. Only the best hypothesis of each",
        "sentence counts.",
        "",
        "| case | peer | dtype | tokens/s | fastest call | CPU time | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, case in found["cases"].items():
        for row in case["rows"]:
            columns = ("tokens/s", "best tokens/s", "tokens per CPU second")
            rates = [f"{row[key]:,.0f}" if key in row else row["missing"] for key in columns]
            cells = [name, row["peer"], row["dtype"], *rates, f"{row.get('runs', '')}"]
            lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for name, case in found["cases"].items():
        shares = [f"{key}: {value:.0%}" for key, value in case.items() if key.startswith("same")]
        lines.append(f"{name}: {'; '.join(shares)}.")
    where = ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=sorted(CASES))
    parser.add_argument("--into", type=Path, help="folder of the result files; default: only print")
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time per peer")
    parser.add_argument("--limit", type=float, default=600.0, help="start no case after this many seconds")
    parser.add_argument("--only", action="append", default=[], help="name of a peer to measure, with *")
    parser.add_argument("--dtype", action="append", default=[], help="dtype to measure; default: all")
    parser.add_argument("--together", action="store_true", help="alternate between peers on a GPU too")
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    for name in arguments.cases:
        if name not in CASES[arguments.device]:
            known = ", ".join(CASES[arguments.device])
            parser.error(f"unknown case {name!r} for --device {arguments.device}; known cases: {known}")
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    where = environment() | {"load average at the start": load}
    if arguments.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    found: dict[str, Any] = {"date": f"{datetime.date.today()}", "environment": where, "cases": {}}
    begun, failed = time.perf_counter(), False
    for name in arguments.cases or CASES[arguments.device]:
        case = CASES[arguments.device][name]
        if arguments.dtype:
            case = replace(case, dtypes=tuple(each for each in case.dtypes if each in arguments.dtype))
        if time.perf_counter() - begun > arguments.limit:
            print(f"{name}: not measured, the time limit is reached", file=sys.stderr)
            continue
        options = arguments.seconds, arguments.only, arguments.together
        found["cases"][name] = measure(name, case, arguments.device, *options)
        failed |= not found["cases"][name]["rows"]
        if arguments.into:
            file = f"{found['date']}-decoding-{arguments.device}"
            write_results(arguments.into, file, found, table(found))
    print(table(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
