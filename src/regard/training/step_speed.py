"""Speed: how fast the steps of a task are on this machine, and with how many threads they are fastest."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from regard.training.interrupts import Interruption
from regard.training.loop import Trainer
from regard.training.settings import Training
from regard.training.task import Task

__all__ = ["StepTimer", "fastest_threads"]

SECONDS, LEAST, MOST = 0.6, 3, 50
"""Each measurement lasts this many seconds, with at least and at most these numbers of steps."""

TURNS, TURN_SECONDS = 5, 0.05
"""How often each number of threads is timed, and how long each time."""

UNTIMED = {"cuda": 6}
"""Steps before the first that is timed, 1 on other devices: on a GPU they compile and capture kernels."""

GAIN = 0.95
"""More threads are used only if they need less than this fraction of the time."""


class StepTimer:
    """Training steps for timing only: they change the model of the task, and leave no checkpoint.

    folder: where a step whose loss is not finite keeps its batch; nothing else is written.
    """

    def __init__(self, task: Task, settings: Training, device: torch.device, folder: Path):
        self._trainer = Trainer(task, settings, folder, device=device)
        for _ in range(UNTIMED.get(device.type, 1)):
            self.step()

    def step(self) -> int:
        """Take one step; returns its number of target tokens."""
        before = self._trainer.progress.tokens
        self._trainer._step(Interruption())
        return self._trainer.progress.tokens - before

    def tokens_per_second(self) -> float:
        """The target tokens per second of a median step."""
        began, found = time.perf_counter(), list[float]()
        while len(found) < LEAST or (len(found) < MOST and time.perf_counter() - began < SECONDS):
            before = time.perf_counter()
            tokens = self.step()
            found.append(tokens / max(time.perf_counter() - before, 1e-9))
        return median(found)


def fastest_threads(most: int) -> int:
    """The number of threads, up to `most`, with which torch is fastest now; it is set as torch's number.

    Threads wait for each other at the end of every operation: if other programs use the cores, two threads
    can be far slower than one. Small operations are timed with one thread, two, four and so on, in several
    turns, and the medians are compared.
    """
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(TURNS):
        for count in counts:
            torch.set_num_threads(count)
            found[count].append(operation_seconds())
    best = counts[0]
    for count in counts[1:]:
        if median(found[count]) < GAIN * median(found[best]):
            best = count
    torch.set_num_threads(best)
    return best


def operation_seconds() -> float:
    """The mean duration of operations like those of a training step, over a short time."""
    x, weight = torch.ones(64, 256), torch.full((256, 512), 1e-3)
    torch.tanh(x @ weight)  # starts the threads
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < TURN_SECONDS:
        torch.tanh(x @ weight)
        count += 1
    return elapsed / max(count, 1)
