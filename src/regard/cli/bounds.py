"""Bounds of the numeric options: the largest value each takes, so that a slip of the finger is an error."""

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
]

CORPUS = 10_000_000
"""Sentences of the built-in corpus."""

COUNT = 100_000
"""Sentences that are printed, or checkpoints that are averaged."""

HEADS = 10_000
LINES = 1_000_000
"""Lines, or words of a line, that are held in memory at once."""

MINUTES = 1_000_000.0
PAIRS = 100_000_000
SEED = 2**63 - 1
TOKENS = 10_000_000
"""Tokens of a batch, padding counted."""

THREADS = max(256, os.cpu_count() or 1)
"""CPU threads: torch crashes when the system cannot start as many as it is told to."""


def finite(value: float | None) -> float | None:
    """Refuse NaN and infinity; the callback of an option, since NaN passes every comparison with a bound.

    >>> finite(0.5)
    0.5
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
