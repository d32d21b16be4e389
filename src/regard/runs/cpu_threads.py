"""Choose the number of CPU threads of training and decoding: fewer if other programs use the cores."""

from __future__ import annotations

import os
import time
from statistics import median

import torch

TURNS, TURN_SECONDS = 5, 0.05
"""Operations are timed TURNS times with each number of threads, for TURN_SECONDS seconds each time."""

SHORT = 3, 0.02
"""The same for a command that may take only a second, such as `regard translate`."""

GAIN = 0.95
"""A larger number of threads is chosen only if its time is below this fraction of the best time so far. So a
small difference does not count."""


def choose_threads(device: str, threads: int | None = None, *, short: bool = False) -> None:
    """Set the number of CPU threads of this process.

    - If `threads` is set, it is used.
    - Otherwise, on a CPU, the fastest number is measured and used. It is not measured if the environment
      variable OMP_NUM_THREADS is set.

    device: the device of the model, such as "cpu" or "cuda".
    short: whether to measure for a short time, with a less exact result.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    elif device == "cpu" and torch.get_num_threads() > 1 and "OMP_NUM_THREADS" not in os.environ:
        fastest_threads(torch.get_num_threads(), *(SHORT if short else (TURNS, TURN_SECONDS)))


def fastest_threads(most: int, turns: int = TURNS, seconds: float = TURN_SECONDS) -> int:
    """Find and set the number of CPU threads, up to `most`, with which torch is fastest; return it.

    More threads are not always faster, because they wait for each other at the end of every operation. If
    other programs use the cores, two threads can be much slower than one. Small operations are timed with 1,
    2, 4, ... threads in several turns, and the median times are compared.

    turns, seconds: how often operations are timed with each number of threads, and how long.
    """
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(turns):
        for count in counts:
            torch.set_num_threads(count)
            times[count].append(operation_seconds(seconds))
    best = counts[0]
    for count in counts[1:]:
        if median(times[count]) < GAIN * median(times[best]):
            best = count
    torch.set_num_threads(best)
    return best


def operation_seconds(least: float) -> float:
    """Return the mean seconds of a small matrix product with tanh, measured for at least this many seconds.

    Training steps and searches consist of such operations.
    """
    x, weight = torch.ones(64, 256), torch.full((256, 512), 1e-3)
    torch.tanh(x @ weight)  # the first call is not timed, because it starts the threads of torch
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < least:
        torch.tanh(x @ weight)
        count += 1
    return elapsed / max(count, 1)
