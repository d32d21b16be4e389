"""Devices: where a model is trained and run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["busy_cores", "choose_device", "free_cores"]

STATISTICS = Path("/proc/stat")
"""Where Linux counts what its cores did: its first line is for all of them together."""


def choose_device(name: str) -> str:
    """The device of this name, if it is here; auto is the best that is."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, there in found.items() if there)
    kind = name.partition(":")[0]
    if kind not in found:
        raise UnknownName("device", name, [*found, "auto"])
    if not found[kind]:
        hint = f"--device auto takes {choose_device('auto')} here; regard doctor tells what there is"
        raise ArgumentError(message(f"device {name}", "torch does not see one", hint=hint))
    number = name.partition(":")[2]
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdigit() and int(number) < count):
        problem = f"there {'is' if count == 1 else 'are'} {count} of this kind here, counted from 0"
        raise ArgumentError(message(f"device {name}", problem, hint=f"--device {kind}"))
    return name


def busy_cores(before: str, after: str, cores: int) -> float:
    """How many cores were at work between two readings of the first line of /proc/stat.

    >>> busy_cores("cpu  100 0 0 100 0", "cpu  150 0 0 150 0", cores=2)
    1.0
    """
    spent = [b - a for a, b in zip(*(map(int, line.split()[1:9]) for line in (before, after)), strict=True)]
    idle = sum(spent[3:5])  # idle, and waiting for a disk
    return cores * (1 - idle / max(sum(spent), 1))


def free_cores(seconds: float = 0.3) -> int:
    """How many of the cores this process may use nobody else uses just now; all, where that is not known.

    Threads that share a core with others wait for each other at every sum, so that two of them on one free
    core are slower than one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        before = STATISTICS.read_text().splitlines()[0]
        time.sleep(seconds)
        after = STATISTICS.read_text().splitlines()[0]
        busy = busy_cores(before, after, os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return cores
    return max(cores - round(busy), 1)
