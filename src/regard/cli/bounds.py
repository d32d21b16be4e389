"""Largest accepted values of numeric options, and callbacks that check the values of options."""

from __future__ import annotations

import math
import os
from typing import Any

import typer

from regard.errors import ArgumentError, message

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
    "probability_unless_default",
    "temperature_unless_default",
    "threads",
]

CORPUS = 10_000_000
"""Maximum number of sentences of the built-in corpus."""

COUNT = 100_000
"""Maximum number of sentences to print, and maximum number of checkpoints to average."""

HEADS = 10_000
LINES = 1_000_000
"""Largest value of the options --at-once, --sequences, --top-k and --erase."""

MINUTES = 1_000_000.0
PAIRS = 100_000_000
SEED = 2**63 - 1
TOKENS = 10_000_000
"""Maximum number of tokens in a batch, including padding."""

THREADS = max(256, os.cpu_count() or 1)
"""Maximum number of CPU threads: torch crashes if the system cannot start as many threads as requested."""


def finite(value: float | None) -> float | None:
    """Option callback: reject NaN and infinity. The bounds of Typer do not reject NaN.

    >>> finite(0.5)
    0.5
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def none_if_default(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Option callback: return None if the option is not on the command line, otherwise its value.

    The help can then show a default value, and the command still knows whether the user has set the option.
    """
    source = context.get_parameter_source(str(parameter.name))
    return None if source is not None and source.name == "DEFAULT" else value


def finite_unless_default(
    context: typer.Context, parameter: typer.CallbackParam, value: float | None
) -> float | None:
    """Option callback: return None if the option is not on the command line; reject NaN and infinity."""
    return finite(none_if_default(context, parameter, value))


def temperature_unless_default(
    context: typer.Context, parameter: typer.CallbackParam, value: float | None
) -> float | None:
    """Option callback: like finite_unless_default(), but also reject a temperature that is not above 0."""
    value = finite_unless_default(context, parameter, value)
    if value is not None and value <= 0:
        place, hint = f"{parameter.opts[0]} {value:g}", "for the most probable output, leave out --sample"
        raise ArgumentError(message(place, "invalid value", expected="a number above 0", hint=hint))
    return value


def probability_unless_default(
    context: typer.Context, parameter: typer.CallbackParam, value: float | None
) -> float | None:
    """Option callback: like finite_unless_default(), but also reject a value that is not in (0, 1]."""
    value = finite_unless_default(context, parameter, value)
    if value is not None and not 0 < value <= 1:
        place, expected = f"{parameter.opts[0]} {value:g}", "a number above 0 and at most 1"
        raise ArgumentError(message(place, "invalid value", expected=expected))
    return value


def threads(count: int | None) -> int | None:
    """Option callback: warn if there are more threads than CPU cores.

    >>> threads(1)
    1
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count is not None and count > cores:
        typer.echo(
            f"--threads {count} is more than the {cores} CPU cores available: this is probably slow", err=True
        )
    return count
