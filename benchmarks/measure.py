"""Measurements: time as median and quartiles, memory as the peak above the memory in use before.

Processor measures wall-clock time on the CPU; device.py measures CUDA devices with events.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = [
    "RESULTS",
    "Machine",
    "Processor",
    "Timing",
    "environment",
    "extra_peak",
    "require_device",
    "taken_for",
    "write_results",
]


RESULTS = Path(__file__).parent / "results"


def require_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Exit with an error of the parser if device is "cuda" and torch finds no CUDA device."""
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; use --device cpu")


def write_results(folder: Path, name: str, record: dict[str, Any], text: str | None = None) -> None:
    """Write results to the files NAME.json and NAME.md. The folder is created if it does not exist.

    text: the content of the Markdown file. None writes only the JSON file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    if text is not None:
        (folder / f"{name}.md").write_text(text)


@dataclass(frozen=True)
class Timing:
    """Median and quartiles in milliseconds, the number of calls, and how they were timed."""

    median: float
    low: float
    high: float
    runs: int
    how: str


class Machine(Protocol):
    """The machine that is measured. memory: its size in bytes."""

    memory: float

    def timed(self, run: Callable[[], object], seconds: float) -> Timing:
        """Return the time of one call of run, measured for about this many seconds."""

    def peak(self, run: Callable[[], object], case: str, number: int) -> float:
        """Return the peak memory of run in MiB, above the memory in use before.

        case, number: the name of the case and the index of the peer, to build run again in a new process.
        """

    def clean(self) -> None:
        """Free what the last peer has left in memory."""

    def environment(self) -> dict[str, str]:
        """Return a description of the machine and the software versions."""

    def clock(self, start: float) -> list[float] | None:
        """Return the lowest and highest clock rate in MHz since start (time.monotonic()), if known."""


class Processor:
    """The CPU: wall-clock time; peak memory is measured in a new process."""

    def __init__(self) -> None:
        self.memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def timed(self, run: Callable[[], object], seconds: float) -> Timing:
        def once() -> float:
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1000

        once()
        return taken_for(seconds, once, "wall-clock time")

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
    """Call `once`, which returns milliseconds, for about this many seconds: at least 5 times (3 if slow)."""
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
    """Return by how many MiB the peak memory of this process rises; only exact for the first call."""
    before = _memory("VmRSS")
    run()
    return max(0.0, _memory("VmHWM") - before)


def _memory(kind: str) -> float:
    # Not getrusage: its peak is inherited from the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) / 1024


def environment() -> dict[str, str]:
    """Return the processor, the number of threads and the software versions."""
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
