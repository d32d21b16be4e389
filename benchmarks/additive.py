"""Benchmark of additive attention: Regard, eager PyTorch and torch.compile, against the bound of the GPU.

python -m benchmarks.additive                         check, then time every case and peer: a Markdown table
python -m benchmarks.additive long-2048 --only regard one case, Regard only
python -m benchmarks.additive short-50 --sweep        try other tile sizes for a case, fastest first
python -m benchmarks.additive long-2048 --profile     time of each kernel of forward and backward

Times are device times: each pass, of Regard and of the peers, is captured as a CUDA graph and replayed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

import regard
from benchmarks.cases import Case, Gate, Passes, Peer, Wrong, both_ways, judged
from benchmarks.device import Device, graphed, timed

__all__ = ["CASES", "PEERS", "Shape", "additive_case", "gate", "graphed", "passes", "run_case"]

FP32 = 132 * 128 * 1.98e9
"""FP32 instructions per second of an H200: 132 multiprocessors with 128 lanes, at 1.98 GHz."""

INSTRUCTIONS = 3.75
"""Instructions for each pair of query and key and each channel, if four channels share one reciprocal: four
multiply-adds for the denominators, ten instructions for the sum of four fractions, and one reciprocal."""

EAGER_COPIES, COMPILED_COPIES = 3.3, 1.2
"""Number of (B, T, S, D) tensors that forward and backward hold at the same time, measured on long-2048."""


@dataclass(frozen=True)
class Shape:
    """The sizes B, T, S and D = E of a case, its mask, and the scale of query and key.

    seen: the mask: "" for none, `padding` or `causal`.
    deviation: standard deviation of query and key.
    outlier: factor of channel 0 of query and key.
    """

    batch: int
    queries: int
    keys: int
    width: int
    seen: str = ""
    deviation: float = 1.0
    outlier: float = 1.0

    def __str__(self) -> str:
        texts = [f"B={self.batch} T={self.queries} S={self.keys} D=E={self.width}"]
        texts += [self.seen] if self.seen else []
        texts += [f"standard deviation {self.deviation:g}"] if self.deviation != 1 else []
        texts += [f"one channel times {self.outlier:g}"] if self.outlier != 1 else []
        return ", ".join(texts)

    @property
    def plain(self) -> bool:
        """Whether the case has no mask, and query and key have unit variance."""
        return not self.seen and self.deviation == self.outlier == 1

    @property
    def elements(self) -> float:
        """Number of pairs of query and key times channels: B x T x S x D without masked pairs."""
        if self.seen == "causal":
            return self.batch * self.queries * (self.queries + 1) / 2 * self.width
        if self.seen == "padding":
            return float(self.lengths().sum()) * self.queries * self.width
        return float(self.batch * self.queries * self.keys * self.width)

    @property
    def limit(self) -> float:
        """Lower bound of the forward time in milliseconds: the instructions of the scores, and no others."""
        return self.elements * INSTRUCTIONS / FP32 * 1e3

    @property
    def judged(self) -> Shape:
        """The part of this shape that eager PyTorch can compute in float64, for the correctness check."""
        batch = min(self.batch, 1 if self.queries > 1000 else 4)
        queries = self.queries if self.queries <= 4096 else 256
        return replace(self, batch=batch, queries=queries)

    def lengths(self) -> Tensor:
        """Key lengths of the batch, (B,), from S/2 to S."""
        return torch.linspace(max(1, self.keys // 2), self.keys, self.batch).long()

    def mask(self, device: str = "cuda") -> regard.Mask | None:
        """The mask as a regard.Mask."""
        if self.seen == "causal":
            return regard.causal()
        return regard.padding(self.lengths().to(device)) if self.seen == "padding" else None

    def hidden(self, device: str = "cuda") -> Tensor | None:
        """The mask as a bool tensor, True where a query must not attend to a key."""
        if self.seen == "causal":
            return torch.ones(self.queries, self.keys, dtype=torch.bool, device=device).triu(1)
        places = torch.arange(self.keys, device=device)
        return places >= self.lengths().to(device)[:, None, None] if self.seen == "padding" else None

    def inputs(self, dtype: torch.dtype, device: str = "cuda") -> list[Tensor]:
        """Query, key, value and vector, with the same bfloat16-representable values in every dtype."""
        source = torch.Generator().manual_seed(0)
        shapes = [(self.batch, n, self.width) for n in (self.queries, self.keys, self.keys)]
        numbers = [torch.randn(shape, generator=source) for shape in [*shapes, (self.width,)]]
        numbers[3] /= self.width**0.5
        for number in numbers[:2]:
            number *= self.deviation
            number[..., 0] *= self.outlier
        return [each.to(torch.bfloat16).to(device, dtype).requires_grad_() for each in numbers]


CASES = {
    "short-50": Shape(64, 50, 50, 1000),
    "short-64": Shape(80, 64, 64, 512),
    "long-512": Shape(8, 512, 512, 256),
    "long-2048": Shape(4, 2048, 2048, 128),
    "decode-50": Shape(64, 1, 50, 1000),
    "short-50-deviation-2": Shape(64, 50, 50, 1000, deviation=2.0),
    "short-50-deviation-8": Shape(64, 50, 50, 1000, deviation=8.0),
    "short-50-outlier": Shape(64, 50, 50, 1000, outlier=100.0),
    "long-512-deviation-2": Shape(8, 512, 512, 256, deviation=2.0),
    "long-512-deviation-8": Shape(8, 512, 512, 256, deviation=8.0),
    "long-512-outlier": Shape(8, 512, 512, 256, outlier=100.0),
    "long-2048-deviation-8": Shape(4, 2048, 2048, 128, deviation=8.0),
    "padded-50": Shape(64, 50, 50, 1000, "padding"),
    "padded-512": Shape(8, 512, 512, 256, "padding"),
    "causal-2048": Shape(4, 2048, 2048, 128, "causal"),
}


class AsGiven(regard.Score):
    """An additive score without projections, so that only the attention itself is timed."""

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector


def eager(query: Tensor, key: Tensor, value: Tensor, vector: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Additive attention in plain PyTorch, with a matrix product for the scores."""
    scores = torch.tanh(query[:, :, None] + key[:, None]) @ vector
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ value


def eager_summed(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, hidden: Tensor | None = None
) -> Tensor:
    """Additive attention in plain PyTorch, with a product and a sum: one more (B, T, S, D) tensor."""
    scores = (torch.tanh(query[:, :, None] + key[:, None]) * vector).sum(-1)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ value


def ours(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, mask: regard.Mask | None = None,
    backend: str = "fused",
) -> Tensor:  # fmt: skip
    """Run regard.attention() with a named backend, so that no other backend is timed by mistake."""
    return regard.attention(query, key, value, score=AsGiven(vector), mask=mask, backend=backend).output


PEERS: dict[str, Callable[[], Callable[..., Tensor]]] = {
    "eager": lambda: eager,
    "eager, summed": lambda: eager_summed,
    "torch.compile": lambda: torch.compile(eager, dynamic=False, fullgraph=True),
    "regard": lambda: ours,
}


def passes(
    peer: str, shape: Shape, dtype: torch.dtype, device: str = "cuda", backend: str = "fused"
) -> Passes:
    """Return the passes to time for a peer; backend: used if the peer is regard."""
    inputs, function = shape.inputs(dtype, device), PEERS[peer]()
    if peer == "regard":
        return both_ways(partial(function, mask=shape.mask(device), backend=backend), inputs)
    return both_ways(partial(function, hidden=shape.hidden(device)), inputs)


def gate(whole: Shape, dtype: torch.dtype, device: str = "cuda", backend: str = "fused") -> Gate:
    """Check the output and gradients of Regard against float64.

    Beyond the strict budget, the check allows one float32 rounding step of the scores, relative to the
    largest absolute log-sum-exp.
    """
    shape = whole.judged
    mine = partial(ours, mask=shape.mask(device), backend=backend)
    plain = partial(eager, hidden=shape.hidden(device))
    found: list[dict[str, Tensor]] = []
    for function, kind in ((mine, dtype), (plain, dtype), (plain, torch.float64)):
        inputs = shape.inputs(kind, device)
        output = function(*inputs)
        doutput = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
        gradients = torch.autograd.grad(output, inputs, doutput)
        named = zip(("output", "query", "key", "value", "vector"), (output, *gradients), strict=True)
        found.append({name: each.detach().double() for name, each in named})
    with torch.no_grad():
        query, key, value, vector = shape.inputs(torch.float32, device)
        lse = regard.attention(
            query, key, value, score=AsGiven(vector), mask=shape.mask(device), backend=backend
        ).lse
    assert lse is not None
    allowance = torch.finfo(torch.float32).eps * lse[lse.isfinite()].abs().max().item()
    return judged(*found, dtype, allowance)


def additive_case(
    shape: Shape,
    dtypes: tuple[str, ...] = ("bfloat16", "float32"),
    compiled: tuple[int, ...] = (1, 2),
    device: str = "cuda",
    backend: str = "fused",
) -> Case:
    """Return a case of the suite.

    compiled: the turn of torch.compile for each dtype (see Peer). backend: that of Regard. The limit on a GPU
    is the FP32 throughput of an H200.
    """
    peers = []
    for dtype, turn in zip(dtypes, compiled, strict=True):
        kind = getattr(torch, dtype)
        whole = float(shape.batch * shape.queries * shape.keys * shape.width * kind.itemsize)
        holds = {
            "eager": EAGER_COPIES * whole,
            "eager, summed": (EAGER_COPIES + 1) * whole,
            "torch.compile": COMPILED_COPIES * whole,
        }
        for name in PEERS:
            make = partial(passes, name, shape, kind, device, backend)
            when = turn if name == "torch.compile" else 0
            mine = name == "regard"
            compiling = name == "torch.compile" and device == "cpu"
            note = (lambda: "peak with what compiling takes") if compiling else str
            peers.append(Peer(name, make, dtype, ours=mine, turn=when, holds=holds.get(name, 0.0), note=note))
    limits = (shape.limit, "FP32 instructions") if device == "cuda" else (None, "")
    return Case(
        f"Additive attention, {shape}",
        tuple(peers),
        lambda peer: gate(shape, getattr(torch, peer.dtype), device, backend),
        *limits,
    )


def run_case(name: str, peer: str, dtype: torch.dtype) -> dict[str, float | str]:
    """Measure forward, forward + backward, and peak memory of one peer."""
    device, shape = Device(), CASES[name]
    device.clean()
    found: dict[str, float | str] = {"case": name, "peer": peer, "dtype": str(dtype).removeprefix("torch.")}
    for each, run in passes(peer, shape, dtype).items():
        timing = timed(run)
        found[each], found[f"{each} low"], found[f"{each} high"] = timing.median, timing.low, timing.high
    found["peak MiB"] = device.peak(passes(peer, shape, dtype)["both"])
    found["of the limit"] = float(found["forward"]) / shape.limit
    return found


def table(rows: list[dict[str, float | str]]) -> str:
    """Return a Markdown table with one row per peer."""
    lines = [
        "| case | dtype | peer | forward ms | of the FP32 limit | forward + backward ms | peak MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = (
            f"{row['forward']:.4f} | {row['of the limit']:.2f} | {row['both']:.4f} | {row['peak MiB']:.0f}"
        )
        lines.append(f"| {row['case']} | {row['dtype']} | {row['peer']} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Check correctness, then measure additive attention."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.additive", description=main.__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (default: all)")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="peer to time (default: all)")
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--sweep", action="store_true", help="time other tile sizes")
    parser.add_argument("--profile", action="store_true", help="time each kernel")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    names = arguments.cases or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; known cases: {', '.join(CASES)}")
    dtypes = [getattr(torch, each) for each in arguments.dtype or ["bfloat16", "float32"]]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    rows = []
    for name, dtype in itertools.product(names, dtypes):
        try:
            used = gate(CASES[name], dtype)
        except Wrong as wrong:
            sys.exit(f"correctness check failed: {name}: {wrong}")
        print(
            f"{name} {dtype}: correctness check passed, {used.allowed:.2f} of the allowed error, "
            f"{used.strict:.2f} of the strict budget",
            flush=True,
        )
        if arguments.profile or arguments.sweep:
            from benchmarks.tiles import profile, sweep

            (profile if arguments.profile else sweep)(name, dtype)
            continue
        for peer in arguments.only or PEERS:
            rows.append(run_case(name, peer, dtype))
            print(f"  {peer}: {rows[-1]['forward']:.4f} / {rows[-1]['both']:.4f} ms", flush=True)
    if rows:
        print("\n" + table(rows))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
