"""Layers whose cost is compared: how to build and run them, and what theory says about their cost."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.layers import MultiHead
from regard.memory import prepare
from regard.scores import Additive

__all__ = [
    "BATCH",
    "LAYERS",
    "LayerCost",
    "measure_layer",
    "measure_projection",
    "median_seconds",
    "peak_memory",
    "peak_operations",
]

BATCH, KERNEL, HEADS = 4, 3, 4
ENOUGH = 0.5


@dataclass(frozen=True)
class LayerCost:
    """A layer over n positions of width d, and its cost in theory.

    build: returns a module that maps (B, n, d) to (B, n, d), given d.
    operations: floating-point operations of the forward pass for one sequence, given n and d. A multiply-add
        is two operations; tanh and the sigmoid are one.
    sequential: number of operations that must follow each other, given n.
    path: number of layers or steps between the first and the last position, given n.
    exponents: the exponents of n and of d in theory.
    """

    build: Callable[[int], nn.Module]
    operations: Callable[[int, int], int]
    sequential: Callable[[int], int]
    path: Callable[[int], int]
    exponents: tuple[int, int]


class _Layer(nn.Module):
    """A function of a module and its input, as a module."""

    def __init__(self, inner: nn.Module, call: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.inner, x)


def _self_attention(d: int) -> nn.Module:
    return _Layer(nn.Identity(), lambda _, x: attention(x, x, x).output)


def _multi_head(d: int) -> nn.Module:
    return _Layer(MultiHead(d, HEADS), lambda layer, x: layer(x, x).output)


def _additive(d: int) -> nn.Module:
    return _Layer(Additive(d, d, d), lambda score, x: attention(x, x, x, score=score).output)


def _recurrent(d: int) -> nn.Module:
    return _Layer(nn.GRU(d, d, batch_first=True), lambda layer, x: layer(x)[0])


def _convolutional(d: int) -> nn.Module:
    layer = nn.Conv1d(d, d, KERNEL, padding=KERNEL // 2)
    return _Layer(layer, lambda layer, x: layer(x.transpose(1, 2)).transpose(1, 2))


LAYERS: dict[str, LayerCost] = {
    "self-attention": LayerCost(
        _self_attention, lambda n, d: 4 * n * n * d, lambda n: 1, lambda n: 1, (2, 1)
    ),
    "multi-head": LayerCost(
        _multi_head, lambda n, d: 4 * n * n * d + 8 * n * d * d, lambda n: 1, lambda n: 1, (2, 1)
    ),
    "additive": LayerCost(
        _additive, lambda n, d: 6 * n * n * d + 4 * n * d * d, lambda n: 1, lambda n: 1, (2, 1)
    ),
    "recurrent": LayerCost(_recurrent, lambda n, d: 12 * n * d * d, lambda n: n, lambda n: n, (1, 2)),
    "convolutional": LayerCost(
        _convolutional, lambda n, d: 2 * KERNEL * n * d * d, lambda n: 1, lambda n: n - 1, (1, 2)
    ),
}
"""Name of a layer -> how to run it, and its cost in theory (Vaswani et al. 2017, table 1)."""


def measure_layer(name: str, n: int, d: int, device: str, rounds: int = 3) -> dict[str, Any]:
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


def measure_projection(steps: int, length: int, d: int, device: str, rounds: int = 3) -> dict[str, Any]:
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
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        trace.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    finally:
        os.unlink(path)
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    held = most = 0
    for event in changes:
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most


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
