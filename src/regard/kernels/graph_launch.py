"""Launch kernels as one CUDA graph, which takes less time on the host than separate launches.

Even a graph of one kernel takes less time, because the arguments need not be written and passed again. A CUDA
graph contains the arguments of its kernels. So it can be launched again only if all addresses are the same.
This is frequent: in a loop, PyTorch's allocator returns the same addresses in each iteration. When the same
addresses are passed for the third time, the launches are captured, and later calls launch the graph.

Tested: on an NVIDIA H200 (CUDA 13), with the same results as separate launches.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Graphs"]

ENABLED = True
"""Whether graphs are used. If False, kernels are always launched one by one."""

USES = 3
"""A graph is captured when the same addresses have been passed this many times."""

KEPT, KEPT_LAUNCHES = 16, 4096
"""Maximum number of graphs of one sequence of launches, and of launches in all graphs together. Graphs are
never removed. A graph of seven launches takes about 100 KB of device memory."""

MOST_MISSES = 256
"""After this many calls without a graph since the last capture, a sequence captures no more graphs."""

RELAXED = 2
"""Capture mode of the driver that does not restrict other streams and threads."""

NON_BLOCKING = 1
"""Option of a stream that does not synchronise with the default stream."""

_count = [0]
"""Number of launches in all graphs."""

_lock = threading.Lock()  # one stream is used for all captures


@functools.cache
def _driver() -> Any:
    """Return the CUDA driver library; None if it is missing or too old."""
    try:
        library = ctypes.PyDLL("libcuda.so.1")
        for name in ("cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"):
            getattr(library, name)
        library.cuGraphInstantiateWithFlags.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        library.cuGraphLaunch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library


@functools.cache
def _capture_stream(device: int) -> int:
    """Return the stream on which launches are captured; 0 if it cannot be created. device: the current one.

    Nothing is ever run on it. It is not a torch.cuda.Stream, which other code could get from PyTorch's pool.
    """
    stream = ctypes.c_void_p(None)
    failed = _driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
    return 0 if failed else stream.value or 0


class Graphs:
    """The CUDA graphs of one sequence of launches, by the addresses of the tensors.

    launch: a function of addresses and a stream that launches all kernels.
    count: number of kernels.
    """

    def __init__(self, launch: Callable[[tuple[int, ...], int], None], count: int):
        self.launch, self.count = launch, count
        self.uses: dict[int, int] = {}  # by the hash of the addresses
        self.graphs: dict[tuple[int, ...], int] = {}
        self.misses = 0
        self.launch_graph: Callable[[int, int], int]  # cuGraphLaunch(), after the first capture

    def run(self, addresses: tuple[int, ...], stream: int) -> bool:
        """Launch the graph for these addresses, if there is one; return whether it was launched."""
        graph = self.graphs.get(addresses)
        if graph is None:
            if not ENABLED or self.misses >= MOST_MISSES:
                return False
            graph = self._captured(addresses)
            if graph is None:
                return False
        return self.launch_again(graph, stream)

    def launch_again(self, graph: int, stream: int) -> bool:
        """Launch a graph of self.graphs; return whether it was launched. Needs no lock."""
        if not ENABLED or torch._C._cuda_isCurrentStreamCapturing():
            return False
        return not self.launch_graph(graph, stream)

    def _captured(self, addresses: tuple[int, ...]) -> int | None:
        """Count a use of these addresses. Capture a graph after enough uses; before that, return None."""
        self.misses += 1
        if self.misses >= MOST_MISSES:
            self.uses.clear()
            return None
        place = hash(addresses)
        uses = self.uses[place] = self.uses.get(place, 0) + 1
        if uses < USES or len(self.graphs) >= KEPT or _count[0] + self.count > KEPT_LAUNCHES:
            return None
        if _driver() is None or torch._C._cuda_isCurrentStreamCapturing():
            return None
        with _lock:
            graph = _capture(lambda stream: self.launch(addresses, stream))
        if graph is None:
            self.misses = MOST_MISSES
            return None
        _count[0] += self.count
        self.graphs[addresses], self.launch_graph = graph, _driver().cuGraphLaunch
        self.misses = 0
        return graph


def _capture(launch: Callable[[int], None]) -> int | None:
    """Return the handle of an executable graph of the kernels of launch(stream); None if capture fails."""
    device = torch.cuda.current_device()
    torch.cuda.set_device(device)  # the driver needs a context, which a new thread does not have
    driver, stream = _driver(), _capture_stream(device)
    if not stream:
        return None
    handle, graph, executable = (ctypes.c_void_p(each) for each in (stream, None, None))
    if driver.cuStreamBeginCapture_v2(handle, RELAXED):
        return None
    try:
        launch(stream)
    finally:
        failed = driver.cuStreamEndCapture(handle, ctypes.byref(graph))
    if failed or not graph.value:
        return None
    failed = driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    driver.cuGraphDestroy(graph)
    return None if failed else executable.value
