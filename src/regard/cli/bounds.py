"""Largest accepted values of numeric options, so that a typing mistake is an error."""

from __future__ import annotations

import math
import os

import typer

__all__ = [
    "CORPUS",
    "COUNT",
    "HEADS",
    "LINES",
    "MINUTES",
    "PAIRS",
    "SEED",
    "THREADS",
    "TOKENS",
    "finite",
    "threads",
]

CORPUS = 10_000_000
"""Number of sentences of the built-in corpus."""

COUNT = 100_000
"""Number of printed sentences, or of averaged checkpoints."""

HEADS = 10_000
LINES = 1_000_000
"""Number of lines, or of words of a line, in memory at once."""

MINUTES = 1_000_000.0
PAIRS = 100_000_000
SEED = 2**63 - 1
TOKENS = 10_000_000
"""Number of tokens in a batch, including padding."""

THREADS = max(256, os.cpu_count() or 1)
"""Number of CPU threads: torch crashes if the system cannot start that many."""


def finite(value: float | None) -> float | None:
    """Reject NaN and infinity: an option callback, because NaN passes every comparison with a bound.

    >>> finite(0.5)
    0.5
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def threads(count: int | None) -> int | None:
    """Warn if there are more threads than CPU cores: an option callback.

    >>> threads(1)
    1
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count is not None and count > cores:
        typer.echo(
            f"--threads {count} is more than the {cores} CPU cores available: expect it to be slow", err=True
        )
    return count
