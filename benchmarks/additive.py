"""The additive kernel on a CUDA device, beside eager PyTorch and torch.compile, and the limit of tanh.

python -m benchmarks.additive                         gates, then every case and peer, as a Markdown table
python -m benchmarks.additive long-2048 --only regard one case, ours alone
python -m benchmarks.additive short-50 --sweep        other tiles for a case, quickest first
python -m benchmarks.additive long-2048 --profile     how long each kernel of a pass runs

Times are of the device: a pass is captured as a CUDA graph, for the peers too, and its replays are timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import regard
from regard.kernels import launch

__all__ = ["CASES", "Case", "PEERS", "gate", "graphed", "run_case"]

TANH = 4.13e12
"""How many tanh an H200 computes a second, by its special-function units."""


@dataclass(frozen=True)
class Case:
    """B, T, S and D = E."""

    batch: int
    queries: int
    keys: int
    width: int

    @property
    def limit(self) -> float:
        """Milliseconds that a tanh of each element takes."""
        return self.batch * self.queries * self.keys * self.width / TANH * 1e3

    def inputs(self, dtype: torch.dtype, device: str = "cuda", batch: int | None = None) -> list[Tensor]:
        """Query, key, value and vector; the same numbers in every dtype that holds them."""
        batch = batch or self.batch
        source = torch.Generator().manual_seed(0)
        shapes = [(batch, n, self.width) for n in (self.queries, self.keys, self.keys)]
        numbers = [torch.randn(shape, generator=source) for shape in [*shapes, (self.width,)]]
        numbers[3] /= self.width**0.5
        return [each.to(torch.bfloat16).to(device, dtype).requires_grad_() for each in numbers]


CASES = {
    "short-50": Case(64, 50, 50, 1000),
    "short-64": Case(80, 64, 64, 512),
    "long-512": Case(8, 512, 512, 256),
    "long-2048": Case(4, 2048, 2048, 128),
    "decode-50": Case(64, 1, 50, 1000),
}


class _AsGiven(regard.Score):
    """An additive score of queries and keys that are projected already: the attention alone is timed."""

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector[None]


def eager(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    """What one would write."""
    return torch.softmax(torch.tanh(query[:, :, None] + key[:, None]) @ vector, -1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    """The fused backend, by name: a case that it would not run must not be timed as something else."""
    return regard.attention(query, key, value, score=_AsGiven(vector), backend="fused").output


PEERS: dict[str, Callable[[], Callable[..., Tensor]]] = {
    "eager": lambda: eager,
    "torch.compile": lambda: torch.compile(eager, dynamic=False, fullgraph=True),
    "regard": lambda: ours,
}


def gate(case: Case, dtype: torch.dtype) -> float:
    """Stop where ours is wrong: over twice the error of eager PyTorch against float64, plus a rounding step,
    of the number itself and of the scores in float32. The worst fraction of that budget that was used."""
    found = []
    batch = min(case.batch, 1 if case.queries > 1000 else 4)
    for function, kind in ((ours, dtype), (eager, dtype), (eager, torch.float64)):
        inputs = case.inputs(kind, batch=batch)
        output = function(*inputs)
        doutput = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
        gradients = torch.autograd.grad(output, inputs, doutput)
        found.append([each.detach().double() for each in (output, *gradients)])
        del inputs, output, gradients
    step = torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * _loudest(case, batch)
    worst = 0.0
    for name, mine, plain, oracle in zip(("output", "query", "key", "value", "vector"), *found, strict=True):
        error, allowed = ((each - oracle).abs().max().item() for each in (mine, plain))
        budget = 2 * allowed + step * oracle.abs().max().item()
        if not error <= budget:
            sys.exit(f"wrong before it was fast: {case} {dtype} {name}: {error:.2e}, allowed {budget:.2e}")
        worst = max(worst, error / budget)
    return worst


def _loudest(case: Case, batch: int) -> float:
    """The largest lse, which is as loud as the scores are."""
    query, key, value, vector = (each.detach() for each in case.inputs(torch.float32, batch=batch))
    attended = regard.attention(query, key, value, score=_AsGiven(vector), backend="fused")
    assert attended.lse is not None
    return attended.lse.abs().max().item()


def graphed(run: Callable[[], object], repeats: int = 1) -> Callable[[], None]:
    """The run, captured so many times in one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph.replay


def timed(run: Callable[[], object], milliseconds: float = 300.0) -> tuple[float, float, float]:
    """Median and quartiles of the device time of one run, in milliseconds."""
    replay = graphed(run, 1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(), replay(), end.record(), torch.cuda.synchronize()
    repeats = max(1, min(20, int(1.0 / max(start.elapsed_time(end), 1e-3))))
    if repeats > 1:  # so short that events would be most of it
        replay = graphed(run, repeats)
    replay(), torch.cuda.synchronize()
    taken: list[float] = []
    while len(taken) < 20 or sum(taken) * repeats < milliseconds:
        start.record(), replay(), end.record(), torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / repeats)
    low, median, high = statistics.quantiles(taken, n=4)
    return median, low, high


def passes(
    function: Callable[..., Tensor], case: Case, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """A forward pass, and a forward with its backward pass."""
    inputs = case.inputs(dtype)
    plain = [each.detach() for each in inputs]
    doutput = torch.randn_like(plain[0])

    def forward() -> object:
        with torch.no_grad():
            return function(*plain)

    return {
        "forward": forward,
        "both": lambda: torch.autograd.grad(function(*inputs), inputs, doutput),
    }


def peak(run: Callable[[], object]) -> float:
    """MiB that one run takes beyond what stood before it, its results among them."""
    run(), torch.cuda.synchronize(), torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(), torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def run_case(name: str, peer: str, dtype: torch.dtype) -> dict[str, float | str]:
    """Forward, both, and the peak of both, for one peer."""
    torch._dynamo.reset()
    case = CASES[name]
    found: dict[str, float | str] = {"case": name, "peer": peer, "dtype": str(dtype).removeprefix("torch.")}
    for each, run in passes(PEERS[peer](), case, dtype).items():
        found[each], found[f"{each} low"], found[f"{each} high"] = timed(run)
    found["peak MiB"] = peak(passes(PEERS[peer](), case, dtype)["both"])
    found["of the limit"] = float(found["forward"]) / case.limit
    torch.cuda.empty_cache()
    return found


TILES = [(16, 32), (16, 64), (32, 32), (64, 32), (32, 64), (64, 64)]
GROUPS = [(4, 1), (2, 2), (2, 1), (1, 4)]
GRADIENTS = [(some, warps) for some in (8, 16, 32) for warps in (1, 2, 4)]


def sweep(name: str, dtype: torch.dtype) -> None:
    """Other tiles for a case: those of the scores by the forward pass, those of the gradients by both."""
    case, kind = CASES[name], launch.Shape(1, 1, 1, *_sizes(CASES[name])).kind
    own = launch.LAUNCHES[kind]
    scores = [
        replace(own, rows=rows, columns=columns, group=group, unroll=unroll, fill=fill)
        for (rows, columns), (group, unroll), fill in itertools.product(TILES, GROUPS, (8, 16))
    ]
    best = _quickest(name, kind, case, dtype, "forward", [own, *scores])
    gradients = [replace(best, some=some, width=32 * warps, warps=warps) for some, warps in GRADIENTS]
    fitting = [each for each in gradients if not each.rows % each.some and not each.columns % each.some]
    best = _quickest(name, kind, case, dtype, "both", [best, *fitting])
    print(f"{name}: {kind}: {best}")


def _sizes(case: Case) -> tuple[int, int, int, int]:
    return case.queries, case.keys, case.width, case.width


def _quickest(
    name: str, kind: str, case: Case, dtype: torch.dtype, which: str, tried: list[launch.Launch]
) -> launch.Launch:
    taken = {}
    for each in tried:
        launch.LAUNCHES[kind] = each
        try:
            taken[each] = timed(passes(ours, case, dtype)[which], 30.0)[0]
        except Exception as error:  # a tile that does not fit the machine is no reason to lose the others
            print(f"  {each}: {type(error).__name__}", flush=True)
    order = sorted(taken, key=lambda each: taken[each])
    for each in order[:8]:
        print(f"  {name} {which} {taken[each]:.4f} ms  {each}", flush=True)
    launch.LAUNCHES[kind] = order[0]
    return order[0]


def profile(name: str, dtype: torch.dtype) -> None:
    """How long each kernel of forward and backward runs."""
    run = passes(ours, CASES[name], dtype)["both"]
    run(), run(), torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
    print(f"{name}, {dtype}: ten passes")
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=48))


def table(rows: list[dict[str, float | str]]) -> str:
    """Markdown, one row a peer."""
    lines = [
        "| case | dtype | peer | forward ms | of the tanh limit | forward + backward ms | peak MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = (
            f"{row['forward']:.4f} | {row['of the limit']:.2f} | {row['both']:.4f} | {row['peak MiB']:.0f}"
        )
        lines.append(f"| {row['case']} | {row['dtype']} | {row['peer']} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Run the gates, then the clocks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.additive", description=main.__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="a peer; all unless given")
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    parser.add_argument("--profile", action="store_true", help="time each kernel")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers here")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    names = given.cases or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; known: {', '.join(CASES)}")
    dtypes = [getattr(torch, each) for each in given.dtype or ["bfloat16", "float32"]]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    rows = []
    for name, dtype in itertools.product(names, dtypes):
        print(
            f"{name} {dtype}: the gate is passed, {gate(CASES[name], dtype):.2f} of its budget used",
            flush=True,
        )
        if given.profile:
            profile(name, dtype)
        elif given.sweep:
            sweep(name, dtype)
        else:
            for peer in given.only or PEERS:
                rows.append(run_case(name, peer, dtype))
                print(f"  {peer}: {rows[-1]['forward']:.4f} / {rows[-1]['both']:.4f} ms", flush=True)
    if rows:
        print("\n" + table(rows))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
