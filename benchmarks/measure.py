"""Measuring: time as a median with its spread, memory as the peak above what was there before.

Processor measures by the clock on the wall; device.py has the same for CUDA, by events.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

__all__ = ["RESULTS", "Machine", "Processor", "Timing", "environment", "extra_peak", "taken_for"]


RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the quartiles around it; how many runs, and how they were timed."""

    median: float
    low: float
    high: float
    runs: int
    how: str


class Machine(Protocol):
    """What is measured on."""

    memory: float

    def timed(self, run: Callable[[], object], seconds: float) -> Timing:
        """How long a run takes, found in about so many seconds."""

    def peak(self, run: Callable[[], object], case: str, number: int) -> float:
        """MiB that the run takes beyond what stood before it; case and number: which peer it is of."""

    def clean(self) -> None:
        """Forget what the last peer left."""

    def environment(self) -> dict[str, str]:
        """What the numbers were measured on."""

    def clock(self, start: float) -> list[float] | None:
        """The lowest and the highest clock in MHz seen since then, by time.monotonic(), if it can be seen."""


class Processor:
    """The CPU, by the clock on the wall; a peak is found in a process of its own."""

    def __init__(self) -> None:
        self.memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def timed(self, run: Callable[[], object], seconds: float) -> Timing:
        def once() -> float:
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1000

        once()
        return taken_for(seconds, once, "by the clock on the wall")

    def peak(self, run: Callable[[], object], case: str, number: int) -> float:
        command = [sys.executable, "-m", "benchmarks", "--suite", "cpu", "--peak", case, str(number)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    def clean(self) -> None:
        pass

    def environment(self) -> dict[str, str]:
        return environment()

    def clock(self, start: float) -> list[float] | None:
        return None


def taken_for(seconds: float, once: Callable[[], float], how: str) -> Timing:
    """Call `once`, which gives milliseconds, for about so long: five times at least, three if it is slow."""
    taken: list[float] = []
    begun = time.perf_counter()
    while True:
        taken.append(once())
        spent = time.perf_counter() - begun
        if len(taken) >= 3 and spent >= seconds * (1 if len(taken) >= 5 else 3):
            break
    low, median, high = statistics.quantiles(taken, n=4)
    return Timing(median, low, high, len(taken), how)


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
