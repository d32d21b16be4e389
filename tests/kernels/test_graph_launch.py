"""Graphs: kernels are launched as a CUDA graph if the same addresses are passed again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.kernels import graph_launch as module
from regard.kernels.graph_launch import Graphs


class Driver:
    """A fake CUDA driver: captures what is launched on stream 7, and runs graphs."""

    def __init__(self) -> None:
        self.capturing, self.graphs, self.failing = False, dict[int, list[tuple[int, ...]]](), ""
        self.launched: list[tuple[tuple[int, ...], int]] = []
        self.captured: list[tuple[int, ...]] = []

    def launch(self, addresses: tuple[int, ...], stream: int) -> None:
        if self.capturing:
            assert stream == 7
            self.captured.append(addresses)
        else:
            self.launched.append((addresses, stream))

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        self.capturing, self.captured = self.failing != "begin", []
        return not self.capturing

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        self.capturing, graph._obj.value = False, 1
        return self.failing == "end"

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: int) -> int:
        executable._obj.value = len(self.graphs) + 1
        self.graphs[executable._obj.value] = self.captured
        return self.failing == "instantiate"

    def cuGraphDestroy(self, graph: Any) -> int:
        return 0

    def cuGraphLaunch(self, graph: int, stream: int) -> int:
        if self.failing == "launch":
            return 1
        self.launched.extend((each, -stream) for each in self.graphs[graph])
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(module, "_driver", lambda: driver)
    monkeypatch.setattr(module, "_capture_stream", lambda _: 7)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: driver.failing == "captured")
    monkeypatch.setattr(module, "_count", [0])
    return driver


def run(graphs: Graphs, *addresses: int) -> None:
    """Launch as LaunchSequence.run() does, on stream 3."""
    if not graphs.run(addresses, 3):
        graphs.launch(addresses, 3)


def test_a_graph_is_launched_from_the_third_call_with_the_same_addresses_on(driver: Driver):
    graphs = Graphs(driver.launch, 3)
    for first in (16, 32, 16, 16, 16, 32):
        run(graphs, first, 64)
    streams = [stream for _, stream in driver.launched]
    assert [addresses for addresses, _ in driver.launched] == [(n, 64) for n in (16, 32, 16, 16, 16, 32)]
    assert streams == [3, 3, 3, -3, -3, 3]


@pytest.mark.parametrize("failing", ["begin", "end", "instantiate", "launch", "captured"])
def test_kernels_are_launched_one_by_one_if_a_graph_fails_or_the_stream_is_captured(
    driver: Driver, failing: str
):
    graphs = Graphs(driver.launch, 3)
    driver.failing = failing
    for _ in range(5):
        run(graphs, 16)
    assert driver.launched == [((16,), 3)] * 5


def test_the_number_of_graphs_is_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "MOST_MISSES", 20)
    graphs = Graphs(driver.launch, 3)
    for first in (1, 2, 3):
        for _ in range(4):
            run(graphs, first)
    assert len(graphs.graphs) == 2 and len(driver.launched) == 12
    for first in range(100):
        run(graphs, first + 10)
    assert not graphs.uses and graphs.misses == 20
    run(graphs, 1)
    assert driver.launched[-1] == ((1,), -3)
    monkeypatch.setattr(module, "KEPT_LAUNCHES", 8)  # the two graphs have six
    others = Graphs(driver.launch, 3)
    for _ in range(5):
        run(others, 1)
    assert not others.graphs


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8, 20, 20, 64), (4, 1, 30, 64), (2, 2048, 3, 64)])
def test_graphs_give_the_same_bits_on_a_gpu(
    shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
):
    batch, queries, keys, width = shape
    score = regard.Additive(width, width).cuda().bfloat16()
    query, *others = (
        torch.randn(batch, count, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for count in (queries, keys, keys)
    )
    leaves = [query, *others, *score.parameters()]
    doutput = torch.randn(batch, queries, width, device="cuda", dtype=torch.bfloat16)

    def results() -> list[torch.Tensor]:
        output = regard.attention(query, *others, score=score, backend="fused").output
        return [output.detach(), *torch.autograd.grad(output, leaves, doutput)]

    monkeypatch.setattr(module, "ENABLED", False)
    for _ in range(4):
        expected = results()
    monkeypatch.setattr(module, "ENABLED", True)
    before = module._count[0]
    for _ in range(8):
        for ours, exact in zip(results(), expected, strict=True):
            assert torch.equal(ours, exact)
        with torch.no_grad():
            query.copy_(query.flip(0)), doutput.copy_(doutput.flip(0))
        assert not torch.equal(results()[0], expected[0])  # the graph reads the new values
        with torch.no_grad():
            query.copy_(query.flip(0)), doutput.copy_(doutput.flip(0))
    assert module._count[0] > before
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(5):
            for ours, exact in zip(results(), expected, strict=True):
                assert torch.equal(ours, exact)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = regard.attention(query, *others, score=score, backend="fused").output
    with torch.no_grad():
        query.mul_(0.5)
    graph.replay()
    with torch.no_grad():
        exact = regard.attention(query, *others, score=score, backend="fused").output
    assert torch.equal(captured, exact)
