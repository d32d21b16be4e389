"""Measuring: time as a median with its spread, memory as the peak above what was there before."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["RESULTS", "Timing", "environment", "peak_of", "timed"]


RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float


def timed(run: Callable[[], object], seconds: float = 4.0) -> Timing:
    """Run twice to warm up, then for about this long, at least five times."""
    run(), run()
    taken: list[float] = []
    while len(taken) < 5 or sum(taken) < seconds * 1000:
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1000)
    low, median, high = statistics.quantiles(taken, n=4)
    return Timing(median, low, high)


def peak_of(case: str, peer: str) -> float:
    """The memory one run takes beyond what stood before it, in MiB: found in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "--peak", case, peer]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def extra_peak(run: Callable[[], object]) -> float:
    """MiB by which the peak of this process rises during one run; the first run in a process can tell."""
    before = _memory("VmRSS")
    run()
    return max(0.0, _memory("VmHWM") - before)


def _memory(kind: str) -> float:
    # Not getrusage: its peak is inherited from the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) / 1024


def environment() -> dict[str, str]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": model,
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
