"""OneSection: allocates, launches all kernels, and frees temporary memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.kernels import one_section as module
from regard.kernels.one_section import Allocation, OneSection


class Memory:
    """A fake CUDA allocator. used: the addresses of the allocated memory."""

    def __init__(self) -> None:
        self.used, self.failing = list[int](), False

    def allocate(self, size: int, stream: int) -> int:
        assert (size, stream) == (512, 7)
        self.used.append(4096)
        return 4096


class Graphs:
    """A fake for the Graphs of a LaunchSequence."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[int, ...], int] = {}
        self.launched: list[tuple[int, int]] = []

    def launch_again(self, graph: int, stream: int) -> bool:
        self.launched.append((graph, stream))
        return True


class Launches:
    """A fake LaunchSequence."""

    def __init__(self, memory: Memory):
        self.memory, self.graphs = memory, Graphs()
        self.launched: list[tuple[tuple[int, ...], int]] = []

    def run_all(self, addresses: tuple[int, ...], stream: int) -> None:
        assert self.memory.used == [4096]
        if self.memory.failing:
            raise RuntimeError("a launch failed")
        self.launched.append((addresses, stream))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(module, "_allocate", memory.allocate)
    monkeypatch.setattr(module, "_free", memory.used.remove)
    monkeypatch.setattr(module, "_stream_of", lambda index: 7)
    return memory


def section(launches: Any) -> OneSection:
    """Return a section with one input, a result of its shape, 512 temporary bytes and a shared result."""
    allocations = [Allocation(1, 1, 0, (3,), (1,), torch.float32)]
    constants = [(torch.empty(0), 99)]
    section = OneSection(allocations, launches, None, 512, constants, [0, 1], torch.device("cpu"))
    section.index = 0  # as on a GPU
    return section


def test_temporary_memory_is_freed_after_the_launch(memory: Memory):
    launches = Launches(memory)
    source = torch.randn(3)
    result, shared = section(launches).run([source], [16])
    assert result.shape == (3,) and not shared.numel() and memory.used == []
    assert launches.launched == [((16, result.data_ptr(), 4096, 99), 7)]
    memory.failing = True
    with pytest.raises(RuntimeError):
        section(launches).run([source], [16])
    assert memory.used == []


def test_a_graph_is_launched_without_the_lock(memory: Memory, monkeypatch: pytest.MonkeyPatch):
    launches, one = Launches(memory), torch.zeros(3)
    monkeypatch.setattr(module, "_empty_like", lambda tensor: one)
    launches.graphs.graphs[16, one.data_ptr(), 4096, 99] = 5
    used = section(launches)
    with used.lock:
        used.run([one], [16])
    assert launches.graphs.launched == [(5, 7)] and not launches.launched
