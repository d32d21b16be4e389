"""Measurements on a CUDA device: time by CUDA events, memory by the allocator, clock rate by nvidia-smi.

A function that takes less than LONG milliseconds is captured as a CUDA graph, so that launches from Python do
not count. If the capture fails, it is timed uncaptured, and the row of the table says so.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import threading
import time
from collections.abc import Callable

import torch

from benchmarks.measure import Timing, environment, taken_for
from regard.fast.captured.graphs import uncollected

__all__ = ["Device", "ceilings", "graphed", "timed"]

LONG = 1000.0
"""Functions that take at least this many milliseconds are not captured: launch overhead is negligible."""


def graphed(run: Callable[[], object], repeats: int = 1) -> Callable[[], None]:
    """Capture `repeats` calls of run in one CUDA graph and return its replay function."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with uncollected(), torch.cuda.graph(graph, pool=pool):
            for _ in range(repeats):
                run()
    except Exception:
        # PyTorch leaves the pool open, and the allocator would not free memory any more.
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise
    return graph.replay


def waits(run: Callable[[], object]) -> bool:
    """Return whether run synchronises with the device, which cannot be captured."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def timed(run: Callable[[], object], seconds: float = 0.3) -> Timing:
    """Return the median and quartiles of the device time of one call of run."""
    run()
    first = min(_elapsed(run), _elapsed(run))
    if first >= LONG:
        return taken_for(seconds, lambda: _elapsed(run), "launched")
    repeats = max(1, min(20, int(2.0 / max(first, 1e-3))))  # so that the overhead of events is small
    replay, how = _repeated(run, repeats), "launched (it waits for the device)"
    if not waits(run):
        try:
            replay, how = graphed(run, repeats), "graph"
        except Exception as error:
            torch.cuda.synchronize()
            how = f"launched ({type(error).__name__} when captured)"
    replay()
    return taken_for(seconds, lambda: _elapsed(replay) / repeats, how)


def _repeated(run: Callable[[], object], repeats: int) -> Callable[[], None]:
    def replay() -> None:
        for _ in range(repeats):
            run()

    return replay


def _elapsed(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


class Device:
    """A CUDA device. As a context manager, it samples the clock rate with nvidia-smi."""

    def __init__(self) -> None:
        self.memory = float(torch.cuda.get_device_properties(0).total_memory)
        self.seen: list[tuple[float, float]] = []
        self.watcher: subprocess.Popen[str] | None = None

    def __enter__(self) -> Device:
        torch._dynamo.reset()
        gc.freeze()  # clean() collects only objects created after the imports
        command = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError):
            self.watcher = subprocess.Popen(
                [*command, "-lms", "200"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.watcher is not None:
            self.watcher.terminate()
            self.watcher.wait()

    def _watch(self) -> None:
        assert self.watcher is not None and self.watcher.stdout is not None
        for line in self.watcher.stdout:
            with contextlib.suppress(ValueError):
                self.seen.append((time.monotonic(), float(line)))

    def timed(self, run: Callable[[], object], seconds: float) -> Timing:
        return timed(run, seconds)

    def peak(self, run: Callable[[], object], case: str = "", number: int = 0) -> float:
        run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def clean(self) -> None:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize()
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()

    def clock(self, start: float) -> list[float] | None:
        rates = [rate for at, rate in list(self.seen) if at >= start]
        if not rates:
            with contextlib.suppress(Exception):  # needs nvidia-smi or pynvml
                rates = [float(torch.cuda.clock_rate())]
        return [min(rates), max(rates)] if rates else None

    def environment(self) -> dict[str, str]:
        properties = torch.cuda.get_device_properties(0)
        found = {
            "gpu": properties.name,
            "memory": f"{properties.total_memory / 2**30:.0f} GiB",
            "multiprocessors": str(properties.multi_processor_count),
            "driver": _query_smi("driver_version"),
            "top clock": f"{_query_smi('clocks.max.sm')} MHz",
            "power limit": f"{_query_smi('power.limit')} W",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
        }
        try:
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            found["triton"] = "none"
        return {**found, **environment()}


def ceilings() -> dict[str, float]:
    """Measure the peak throughput of this device: a bfloat16 matmul of size 8,192, and a copy of 4 GiB."""
    matrix = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
    product = timed(lambda: matrix @ matrix, 0.2).median
    much = torch.empty(1 << 31, dtype=torch.bfloat16, device="cuda")
    other = torch.empty_like(much)
    copy = timed(lambda: torch.neg(much, out=other), 0.1).median  # a captured copy_ is slower
    return {
        "matmul TFLOP/s": round(2 * 8192**3 / product / 1e9, 1),
        "copy TB/s": round(2 * much.nbytes / copy / 1e9, 3),
    }


def _query_smi(what: str) -> str:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
