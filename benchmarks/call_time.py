"""Time of plain calls as users make them: python -m benchmarks.call_time [--device cuda].

Each call of Regard is measured beside the PyTorch code that a user would write instead, alternating in short
runs. Reported are the fastest run and the median of all runs, because the machine may be shared. On CUDA,
`wall` is the time of a call in a loop that ends with one synchronisation, and `device` is the time of a
replayed CUDA graph. Before a pair is measured, its results are compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.measure import RESULTS, environment

__all__ = ["Pair", "Row", "measured", "pairs", "table"]

Run = Callable[[], Any]

SMALL = {"S=4": (1, 2, 4, 16), "S=20": (1, 2, 20, 16), "S=32": (2, 4, 32, 32)}
PADDED = {"32,8,512,64": (32, 8, 512, 64), "8,16,2048,64": (8, 16, 2048, 64), "128,8,64,64": (128, 8, 64, 64)}
ADDITIVE = {
    "64,1,50,512": (64, 1, 50, 512),
    "64,50,50,1000": (64, 50, 50, 1000),
    "8,512,512,256": (8, 512, 512, 256),
}
SCALES = (0.5, 1.0, 2.0, 8.0)


@dataclass(frozen=True)
class Pair:
    """A call of Regard, and the same in plain PyTorch. gradients: whether both calls build a graph."""

    name: str
    gradients: bool
    ours: Run
    theirs: Run


@dataclass(frozen=True)
class Row:
    """The times of a pair in microseconds: of the fastest run, and the median of the runs."""

    name: str
    gradients: bool
    kind: str
    ours: float
    theirs: float
    ours_median: float
    theirs_median: float


def inputs(shape: tuple[int, ...], device: str, dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    """Return query, key and value of one shape."""
    source = torch.Generator(device).manual_seed(0)
    made = [torch.randn(shape, generator=source, device=device).to(dtype) for _ in range(3)]
    return [each.requires_grad_(gradients) for each in made]


def small_pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield small dot-product calls, whose time is that of the host."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for name, shape in SMALL.items():
        query, key, value = inputs(shape, device, dtype, gradients)
        batch, _, keys, _ = shape
        pair = partial(_masked_pair, name, gradients, query, key, value)
        yield pair("plain", {}, {})
        yield pair("causal", {"mask": regard.causal()}, {"is_causal": True})
        lengths = torch.full((batch,), keys - 1, device=device)
        seen = (torch.arange(keys, device=device) < lengths[:, None])[:, None, None]
        yield pair("padding", {"mask": regard.padding(lengths)}, {"attn_mask": seen})
        table = torch.ones(keys, keys, dtype=torch.bool, device=device).tril()
        yield pair("bool tensor", {"mask": table}, {"attn_mask": table})
        if device == "cpu":
            yield _changing_pair(name, gradients, query, key, value, seen)


def _masked_pair(
    shape: str, gradients: bool, query: Tensor, key: Tensor, value: Tensor, kind: str, ours: dict[str, Any],
    theirs: dict[str, Any],
) -> Pair:  # fmt: skip
    return Pair(
        f"{kind}, {shape}",
        gradients,
        lambda: regard.attention(query, key, value, **ours).output,
        lambda: sdpa(query, key, value, **theirs),
    )


def _changing_pair(
    shape: str, gradients: bool, query: Tensor, key: Tensor, value: Tensor, seen: Tensor
) -> Pair:  # fmt: skip
    """Padding with other lengths in every second call, so that nothing about the mask can be kept."""
    batch, keys = query.shape[0], key.shape[2]
    masks = [regard.padding(torch.full((batch,), keys - each)) for each in (2, 1)]
    turn = [0]

    def ours() -> Tensor:
        turn[0] ^= 1
        return regard.attention(query, key, value, mask=masks[turn[0]]).output

    return Pair(
        f"padding, new lengths each call, {shape}",
        gradients,
        ours,
        lambda: sdpa(query, key, value, attn_mask=seen),
    )


def layer_pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield an additive step from a Memory, and MultiHead."""
    torch.manual_seed(0)
    batch, keys, width = 2, 10, 16
    score = regard.Additive(width, width, width).to(device).requires_grad_(gradients)
    states, query = (
        torch.randn(batch, keys, width, device=device),
        torch.randn(batch, 1, width, device=device),
    )
    lengths = torch.tensor([keys, keys - 2], device=device)
    hidden = (torch.arange(keys, device=device) >= lengths[:, None])[:, None]
    with torch.no_grad():
        projected = states @ score.key_weight
        memories = {"": regard.prepare(states, score=score)}
        memories[", padding"] = regard.prepare(states, score=score, mask=regard.padding(lengths))

    def eager(padded: bool) -> Tensor:
        scores = torch.tanh((query @ score.query_weight)[:, :, None] + projected[:, None]) @ score.vector
        return torch.softmax(scores.masked_fill(hidden, -torch.inf) if padded else scores, -1) @ states

    for name, memory in memories.items():
        yield Pair(
            f"additive step from a Memory{name}",
            gradients,
            lambda memory=memory: regard.attention(query, memory).output,
            partial(eager, bool(name)),
        )
    theirs = nn.MultiheadAttention(64, 4, batch_first=True).to(device).eval().requires_grad_(gradients)
    layer, x = (
        regard.MultiHead.from_torch(theirs).requires_grad_(gradients),
        torch.randn(2, 10, 64, device=device),
    )
    yield Pair(
        "MultiHead, self-attention",
        gradients,
        lambda: layer(x).output,
        lambda: theirs(x, x, x, need_weights=False)[0],
    )


def padded_pairs(gradients: bool) -> Iterator[Pair]:
    """Yield padded dot-product attention on CUDA in bfloat16, with the layout that linear layers return."""
    for name, (batch, heads, length, width) in PADDED.items():
        made = inputs((batch, length, heads, width), "cuda", torch.bfloat16, gradients)
        query, key, value = (each.transpose(1, 2) for each in made)
        lengths = torch.randint(length // 2, length + 1, (batch,), device="cuda")
        seen = (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None]
        yield _masked_pair(
            name,
            gradients,
            query,
            key,
            value,
            "padding",
            {"mask": regard.padding(lengths)},
            {"attn_mask": seen},
        )


def additive_pairs(gradients: bool) -> Iterator[Pair]:
    """Yield additive attention on CUDA in bfloat16, for several standard deviations of the inputs."""
    for name, (batch, queries, keys, width) in ADDITIVE.items():
        for scale in SCALES:
            source = torch.Generator("cuda").manual_seed(0)
            shapes = [(batch, queries, width), (batch, keys, width), (batch, keys, width)]
            query, key, value = (
                (scale * torch.randn(shape, generator=source, device="cuda"))
                .bfloat16()
                .requires_grad_(gradients)
                for shape in shapes
            )
            score = regard.Additive(width, width).cuda().bfloat16()
            with torch.no_grad():
                memory = regard.prepare(key, value, score=score)
            vector = score.vector

            def eager(query: Tensor = query, memory: regard.Memory = memory, vector: Tensor = vector,
                      weight: Tensor = score.query_weight) -> Tensor:  # fmt: skip
                scores = torch.tanh((query @ weight).unsqueeze(2) + memory.key.unsqueeze(1)) @ vector
                return torch.softmax(scores, -1) @ memory.value

            yield Pair(
                f"additive {name}, standard deviation {scale:g}",
                gradients,
                lambda query=query, memory=memory: regard.attention(query, memory).output,
                eager,
            )


def pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield all pairs of this device."""
    yield from small_pairs(device, gradients)
    yield from layer_pairs(device, gradients)
    if device == "cuda":
        yield from padded_pairs(gradients)
        yield from additive_pairs(gradients)


def same(pair: Pair) -> None:
    """Raise AssertionError unless both calls of the pair agree, within the rounding of the inputs' dtype."""
    ours, theirs = pair.ours().detach().float(), pair.theirs().detach().float()
    half = pair.ours().dtype == torch.bfloat16
    error = torch.linalg.norm(ours - theirs) / torch.linalg.norm(theirs).clamp_min(1e-6)
    assert error < (0.03 if half else 1e-4), f"{pair.name}: relative error {error:.1e}"


def measured(pair: Pair, device: str, seconds: float) -> list[Row]:
    """Measure a pair for about this many seconds."""
    with torch.set_grad_enabled(pair.gradients):
        if not pair.name.startswith("padding, new lengths"):
            same(pair)
        kinds: dict[str, tuple[Run, Run]] = {"wall": (pair.ours, pair.theirs)}
        if device == "cuda":
            kinds["device"] = (_captured(pair.ours), _captured(pair.theirs))
        return [_row(pair, kind, runs, device, seconds) for kind, runs in kinds.items()]


def _captured(run: Run) -> Run:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _row(pair: Pair, kind: str, runs: tuple[Run, Run], device: str, seconds: float) -> Row:
    taken: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(taken[0]) < 5:
        for run, times in zip(runs, taken, strict=True):
            calls = 20 if device == "cuda" else 6
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / calls * 1e6)
    fastest, median = [min(times) for times in taken], [statistics.median(times) for times in taken]
    return Row(pair.name, pair.gradients, kind, *fastest, *median)


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| call | gradients | time | regard | PyTorch | difference | regard, median | PyTorch, median |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = (row.ours, row.theirs, row.ours - row.theirs, row.ours_median, row.theirs_median)
        shown = " | ".join(f"{number:.1f}" for number in numbers)
        lines.append(f"| {row.name} | {'yes' if row.gradients else 'no'} | {row.kind} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all pairs and write a dated result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time per call [default: 0.5]")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for gradients in (False, True):
        for pair in pairs(arguments.device, gradients):
            of_pair = measured(pair, arguments.device, arguments.seconds)
            print("\n".join(table(of_pair).splitlines()[2:]), flush=True)
            rows += of_pair
    machine = environment()
    if arguments.device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem = arguments.output / f"{datetime.date.today()}-call-{arguments.device}"
    whole = {"date": str(datetime.date.today()), "environment": machine, "note": arguments.note}
    stem.with_suffix(".json").write_text(
        json.dumps({**whole, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = f"# Time of plain calls, {datetime.date.today()}\n\n{facts}. {arguments.note}\n\n"
    head += "Microseconds of the fastest run, and the median of the runs; both calls alternate.\n\n"
    stem.with_suffix(".md").write_text(f"{head}{table(rows)}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
