"""Largest accepted values of numeric options, and option callbacks that check values."""

from __future__ import annotations

import math
import os
from typing import Any

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
    "finite_unless_default",
    "none_if_default",
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


def none_if_default(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return None if the option is not on the command line: an option callback.

    The help prints the default, and the command can still report an option that has no effect.
    """
    source = context.get_parameter_source(str(parameter.name))
    return None if source is not None and source.name == "DEFAULT" else value


def finite_unless_default(
    context: typer.Context, parameter: typer.CallbackParam, value: float | None
) -> float | None:
    """Return None if the option is not on the command line; reject NaN and infinity: an option callback."""
    return finite(none_if_default(context, parameter, value))


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
