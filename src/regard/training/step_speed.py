"""Measure the speed of training steps on this machine, and find the fastest number of threads."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from regard.training.loop import Trainer
from regard.training.settings import Training
from regard.training.task import Task

SECONDS, LEAST, MOST = 0.6, 3, 50
"""Training steps are timed for SECONDS seconds, but at least LEAST and at most MOST steps."""

TURNS, TURN_SECONDS = 5, 0.05
"""Operations are timed TURNS times with each number of threads, for TURN_SECONDS seconds each time."""

UNTIMED = {"cuda": 6}
"""Number of first steps that are not timed, for each device type, e.g. because they compile kernels. The
default is 1."""

GAIN = 0.95
"""A larger number of threads is chosen only if its time is below this fraction of the best time so far. So a
small difference does not count."""


def tokens_per_second(task: Task, settings: Training, device: torch.device) -> float:
    """Run training steps, and return their median speed in target tokens per second.

    The steps change the weights of the model, but write no file. The first steps are not timed.
    """
    trainer = Trainer(task, settings, Path(), device=device)
    for _ in range(UNTIMED.get(device.type, 1)):
        trainer.take_step()
    began, speeds = time.perf_counter(), list[float]()
    while len(speeds) < LEAST or (len(speeds) < MOST and time.perf_counter() - began < SECONDS):
        before, tokens = time.perf_counter(), trainer.progress.tokens
        trainer.take_step()
        tokens = trainer.progress.tokens - tokens
        speeds.append(tokens / max(time.perf_counter() - before, 1e-9))
    return median(speeds)


def fastest_threads(most: int) -> int:
    """Find and set the number of CPU threads, up to `most`, with which torch is fastest; return it.

    More threads are not always faster, because they wait for each other at the end of every operation. If
    other programs use the cores, two threads can be much slower than one. Small operations are timed with 1,
    2, 4, ... threads in several rounds, and the median times are compared.
    """
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(TURNS):
        for count in counts:
            torch.set_num_threads(count)
            seconds[count].append(operation_seconds())
    best = counts[0]
    for count in counts[1:]:
        if median(seconds[count]) < GAIN * median(seconds[best]):
            best = count
    torch.set_num_threads(best)
    return best


def operation_seconds() -> float:
    """Return the mean seconds of a small matrix product with tanh, measured for TURN_SECONDS seconds.

    Training steps consist of such operations.
    """
    x, weight = torch.ones(64, 256), torch.full((256, 512), 1e-3)
    torch.tanh(x @ weight)  # the first call is not timed, because it starts the threads of torch
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < TURN_SECONDS:
        torch.tanh(x @ weight)
        count += 1
    return elapsed / max(count, 1)
