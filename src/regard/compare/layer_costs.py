"""Study "cost": time, memory and operations of layers, against the number of positions n and the width d."""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.compare.study import (
    Row,
    Study,
    StudyResult,
    fitted_slope,
)
from regard.compare.study_context import StudyContext, cpu_threads
from regard.evaluation.confidence import interval
from regard.layers import MultiHead
from regard.memory import prepare
from regard.scores import Additive

BATCH, KERNEL, HEADS = 4, 3, 4
ENOUGH = 0.5

ROUNDS, REPEATED = 3, "repetitions"
"""Number of times that each time is measured, and what a verdict calls them."""

TOLERANCE = 0.3
"""A fitted exponent agrees with the theory if it differs by at most this much."""

CPU_THREADS = 1
"""Threads on a CPU, if --threads is not set. On a busy machine, several threads wait for each other, and the
times become many times longer."""

LARGE = 4.0
"""A size is large if its time is at least this many times the shortest time."""


@dataclass(frozen=True)
class LayerCost:
    """A layer over n positions of width d, and its cost in theory; by default, that of attention.

    build: returns a module that maps (B, n, d) to (B, n, d), given d.
    operations: floating-point operations of the forward pass for one sequence, given n and d. A multiply-add
        is two operations; tanh and the sigmoid are one.
    sequential: number of operations that must follow each other, given n.
    path: number of layers or steps between the first and the last position, given n.
    exponents: the exponents of n and of d in theory.
    """

    build: Callable[[int], nn.Module]
    operations: Callable[[int, int], int]
    sequential: Callable[[int], int] = lambda n: 1
    path: Callable[[int], int] = lambda n: 1
    exponents: tuple[int, int] = (2, 1)


class _Layer(nn.Module):
    """A function of a module and its input, as a module."""

    def __init__(self, inner: nn.Module, call: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.inner, x)


LAYERS: dict[str, LayerCost] = {
    "self-attention": LayerCost(
        lambda d: _Layer(nn.Identity(), lambda _, x: attention(x, x, x).output),
        operations=lambda n, d: 4 * n * n * d,
    ),
    "multi-head": LayerCost(
        lambda d: _Layer(MultiHead(d, HEADS), lambda layer, x: layer(x, x).output),
        operations=lambda n, d: 4 * n * n * d + 8 * n * d * d,
    ),
    "additive": LayerCost(
        lambda d: _Layer(Additive(d, d, d), lambda score, x: attention(x, x, x, score=score).output),
        operations=lambda n, d: 6 * n * n * d + 4 * n * d * d,
    ),
    "recurrent": LayerCost(
        lambda d: _Layer(nn.GRU(d, d, batch_first=True), lambda layer, x: layer(x)[0]),
        operations=lambda n, d: 12 * n * d * d,
        sequential=lambda n: n,
        path=lambda n: n,
        exponents=(1, 2),
    ),
    "convolutional": LayerCost(
        lambda d: _Layer(nn.Conv1d(d, d, KERNEL, padding=KERNEL // 2), lambda layer, x: layer(x.mT).mT),
        operations=lambda n, d: 2 * KERNEL * n * d * d,
        path=lambda n: n - 1,
        exponents=(1, 2),
    ),
}
"""Name of a layer -> how to run it, and its cost in theory (Vaswani et al. 2017, table 1)."""


def measure_layer(name: str, n: int, d: int, device: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure one layer: times of the forward pass and of forward and backward, and the peak memory.

    Each time is a list with one value per round; a value is the median of several calls.
    """
    torch.manual_seed(0)
    layer = LAYERS[name].build(d).to(device)
    x = torch.randn(BATCH, n, d, device=device, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        layer(x).sum().backward()

    both()  # memory is allocated and kernels are compiled in the first call
    return {
        "forward": [median_seconds(forward, device) for _ in range(rounds)],
        "both": [median_seconds(both, device) for _ in range(rounds)],
        "memory": peak_memory(both, device),
    }


def measure_projection(steps: int, length: int, d: int, device: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure additive attention over decoder steps, with U h computed once and with U h at every step."""
    torch.manual_seed(0)
    score = Additive(d, d, d).to(device)
    states = torch.randn(BATCH, length, d, device=device)
    queries = torch.randn(BATCH, steps, d, device=device).split(1, 1)

    @torch.no_grad()
    def once() -> None:
        memory = prepare(states, score=score)
        for query in queries:
            attention(query, memory)

    @torch.no_grad()
    def every() -> None:
        for query in queries:
            attention(query, prepare(states, score=score))

    once()
    times: dict[str, list[float]] = {"once": [], "every": []}
    for _ in range(rounds):  # alternately, so that other work on the machine slows down both
        times["once"].append(median_seconds(once, device, 3))
        times["every"].append(median_seconds(every, device, 3))
    return times


def peak_operations(device: str) -> float:
    """Return the floating-point operations per second of a large matrix product, in float32."""
    size = 4096 if device.startswith("cuda") else 768
    a = torch.randn(size, size, device=device)
    return 2 * size**3 / median_seconds(lambda: a @ a, device, 5)


def peak_memory(call: Callable[[], None], device: str) -> int:
    """Return the bytes that a call allocates at most, beyond what was allocated before."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write its progress to stderr
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    return max(accumulate((event["args"]["Bytes"] for event in changes), initial=0))


def median_seconds(call: Callable[[], Any], device: str, calls: int = 5) -> float:
    """Return the median duration of several calls; fewer calls if they take more than ENOUGH seconds."""
    times: list[float] = []
    while len(times) < calls and sum(times) < ENOUGH:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _cost(context: StudyContext, trained: list[Row], result: StudyResult) -> None:
    device = context.device
    gpu = device.startswith("cuda")
    # On a GPU, launching the kernels takes most of the time below about n = 4096.
    first, last, size, widest = (6, 15, 128, 1024) if gpu else (5, 10, 64, 512)
    lengths = [2**power for power in range(first, last + 1 - (gpu + 1) * context.quick)]
    sizes = [(n, size, "n") for n in lengths]
    sizes += [(size, d, "d") for d in (32, 64, 128, 256, 512, 1024) if d <= widest]
    with cpu_threads(device, context.threads or (CPU_THREADS if device == "cpu" else None)):
        threads = torch.get_num_threads()
        name = torch.cuda.get_device_name() if gpu else device
        base = {"device": name, "threads": threads, "batch": BATCH}
        peak = context.measured("cost-peak", base, lambda: peak_operations(device))
        rows = []
        for name in LAYERS:
            context.say(f"timing {name} ...")
            rows += [_row(context, base, peak, name, *each) for each in sizes]
        once = context.measured("cost-once", base, lambda: measure_projection(64, 128, 256, device))
    where = f"float32, batch size {BATCH}, {base['device']}"
    where += f", {threads} thread{'s' * (threads != 1)}" if device == "cpu" else ""
    mean, where = f"{where}, mean of {ROUNDS} {REPEATED}", f"{where}, {ROUNDS} {REPEATED}"
    plain = [{**row, **{key: statistics.fmean(row[key]) for key in ("forward", "both")}} for row in rows]
    result.table("cost", f"Time in seconds, peak memory in bytes and operations of layers: {where}.", plain)
    title = (
        f"Exponents of the time, fitted to sizes that take {LARGE:g} times as long as the shortest, and "
        f"of operations and memory, fitted to the upper half of the sizes: {where}."
    )
    result.table("cost-exponents", title, _exponents(rows))
    projected = [
        {"U h": name, "round": k, "seconds": value}
        for name, values in once.items()
        for k, value in enumerate(values)
    ]
    title = f"Seconds for 64 decoder steps over 128 states, d = 256: {where}."
    result.table("cost-once", title, projected)
    own = [row for row in plain if row["varied"] == "n"]
    for of, text in (("both", "Seconds"), ("memory", "Peak memory in bytes")):
        caption = f"{text} of one layer against n, d = {size}, forward and backward: {mean}."
        columns, axes = ("layer", "n", of), ("n", text.lower())
        result.lines(f"cost-{of}-n", caption, own, columns, axes, "xy", band=False)
    _add_verdicts(result, rows, once)


def _add_verdicts(result: StudyResult, rows: Sequence[Row], once: dict[str, list[float]]) -> None:
    attention = "Self-attention takes time O(n^2 d): the time grows as n^2 for large n."
    recurrent = "A recurrent layer takes time O(n d^2): the time grows as n, in n sequential steps."
    for name, layer, text, theory in (
        ("cost.attention", "self-attention", attention, 2.0),
        ("cost.recurrent", "recurrent", recurrent, 1.0),
    ):
        what = f"exponent of n in the time of {layer}, forward and backward"
        bounds = {"least": theory - TOLERANCE, "most": theory + TOLERANCE}
        result.judge(name, text, _fits(rows, layer, "n", "both"), what, REPEATED, **bounds)
    text = "If n is smaller than d, self-attention is faster than a recurrent layer."
    narrow = [row for row in _of(rows, "self-attention", "d") if row["n"] < row["d"]][-1]
    same = next(row for row in _of(rows, "recurrent", "d") if row["d"] == narrow["d"])
    what = f"log of the time of recurrent over self-attention, n = {narrow['n']}, d = {narrow['d']}"
    result.judge("cost.short", text, _log_ratios(same["both"], narrow["both"]), what, REPEATED)
    text = "Additive attention is faster if U h is computed once, not at every decoder step."
    what = "log of the time with U h at every step over the time with U h once"
    result.judge("cost.once", text, _log_ratios(once["every"], once["once"]), what, REPEATED)


def _log_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(first, second, strict=True)]


def _row(context: StudyContext, base: Row, peak: float, name: str, n: int, d: int, varied: str) -> Row:
    device, about = context.device, {**base, "layer": name, "n": n, "d": d}
    measured = context.measured(f"cost-{name}", about, lambda: measure_layer(name, n, d, device))
    layer = LAYERS[name]
    operations = BATCH * layer.operations(n, d)
    return {
        "layer": name,
        "varied": varied,
        "n": n,
        "d": d,
        **measured,
        "operations": operations,
        "sequential": layer.sequential(n),
        "path": layer.path(n),
        "share_of_peak": operations / statistics.median(measured["forward"]) / peak,
    }


def _of(rows: Sequence[Row], layer: str, varied: str) -> list[Row]:
    return [row for row in rows if row["layer"] == layer and row["varied"] == varied]


def _fits(rows: Sequence[Row], layer: str, varied: str, of: str) -> list[float]:
    """Return the exponent of the time in n or d, fitted to the large sizes, for each round."""
    large = _large(_of(rows, layer, varied), of)
    rounds = range(len(large[0][of]))
    return [fitted_slope([r[varied] for r in large], [r[of][k] for r in large], log="xy") for k in rounds]


def _large(rows: Sequence[Row], of: str) -> Sequence[Row]:
    """Return the rows of the large sizes: from the first that takes LARGE times as long as the shortest.

    For smaller sizes, most of the time is launch overhead, which does not depend on the size. At least
    the two largest sizes are returned.
    """
    times = [statistics.median(row[of]) for row in rows]
    first = next((at for at in range(len(times)) if min(times[at:]) >= LARGE * min(times)), len(rows))
    return rows[min(first, len(rows) - 2) :]


def _exponents(rows: Sequence[Row]) -> list[Row]:
    table = []
    for name, layer in LAYERS.items():
        for varied, theory in zip("nd", layer.exponents, strict=True):
            own = _of(rows, name, varied)
            upper = own[len(own) // 2 :]
            others = {
                of: fitted_slope([r[varied] for r in upper], [r[of] for r in upper], log="xy")
                for of in ("operations", "memory")
            }
            for of in ("forward", "both"):
                found = interval(_fits(rows, name, varied, of))
                fit = {"exponent": found.mean, "low": found.low, "high": found.high}
                table.append({"layer": name, "of": varied, "pass": of, **fit, "theory": theory, **others})
    return table


COST = Study("cost", "Cost of layers", quality=False, extra=_cost)
