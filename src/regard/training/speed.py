"""Speed: how fast the steps of a task are on this machine, and with how many threads they are fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from regard.training.interrupting import Interruption
from regard.training.loop import Trainer
from regard.training.settings import Training
from regard.training.task import Task

__all__ = ["Rehearsal", "fastest_threads"]

SECONDS, LEAST, MOST = 0.6, 3, 50
"""A measurement takes this long, but at least and at most this many steps."""

UNTIMED = {"cuda": 6}
"""Steps before the first that is timed, 1 on other devices: on a GPU they compile and capture kernels."""

GAIN = 0.9
"""Fewer threads are used if a step takes less than this part of the time."""


class Rehearsal:
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
        return 1 / _median_seconds(self.step)


def fastest_threads(step: Callable[[], int], most: int) -> int:
    """The number of threads with which steps are fastest: `most`, or fewer where others use the cores.

    Threads wait for each other at the end of every operation, so two threads on one free core are slower than
    one. The number found is set as torch's number of threads. step: takes a step, returns its tokens.
    """
    torch.set_num_threads(most)
    best, seconds, fewer = most, _median_seconds(step), most // 2
    while fewer >= 1:
        torch.set_num_threads(fewer)
        now = _median_seconds(step)
        if now > GAIN * seconds:
            break
        best, seconds, fewer = fewer, now, fewer // 2
    torch.set_num_threads(best)
    return best


def _median_seconds(step: Callable[[], int]) -> float:
    """The median duration of steps, per token."""
    began, found = time.perf_counter(), list[float]()
    while len(found) < LEAST or (len(found) < MOST and time.perf_counter() - began < SECONDS):
        before = time.perf_counter()
        tokens = step()
        found.append((time.perf_counter() - before) / max(tokens, 1))
    return max(median(found), 1e-12)
