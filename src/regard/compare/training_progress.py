"""The progress of the trainings of a comparison, as one line of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from regard.runs.estimate import duration_text

__all__ = ["SHOWN", "progress_line", "step_of"]

STEP = re.compile(r"^step ([\d,]+)/([\d,]+) ", re.M)
"""The line that `regard train` prints: "step 365/1,000  loss ..."."""

SHOWN = 3
"""Maximum number of running training runs that are named; the others are only counted."""

ENOUGH = 0.1
"""The time left is shown from this mean share of the running trainings on: the first steps take longer."""


def step_of(log: Path) -> tuple[int, int] | None:
    """Return the last step that the log of a training names, and its number of steps; None before that."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - 4000, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    found = STEP.findall(text)
    if not found:
        return None
    step, total = (int(number.replace(",", "")) for number in found[-1])
    return step, total


def progress_line(
    done: int, total: int, running: Sequence[tuple[str, tuple[int, int] | None]], seconds: float
) -> str:
    """Return a line about the trainings: how many are finished, the time left, and the running ones.

    done, total: number of finished trainings, and of all trainings.
    running: the name and the step of each running training, as returned by step_of().
    seconds: the time since the first training began.

    >>> progress_line(1, 4, [("luong, seed 0", (500, 1000))], 90)
    'trained 1 of 4, about 2 minutes left; running: luong, seed 0, step 500 of 1,000'
    >>> progress_line(0, 4, [("luong, seed 0", (1, 1000))], 9)
    'trained 0 of 4; running: luong, seed 0, step 1 of 1,000'
    """
    shares = [step / max(steps, 1) for _, place in running if place is not None for step, steps in [place]]
    finished = done + sum(shares)
    left = ""
    if finished >= ENOUGH * max(len(running), 1):
        left = f", about {duration_text(seconds * (total - finished) / finished)} left"
    names = [
        f"{name}, starting" if place is None else f"{name}, step {place[0]:,} of {place[1]:,}"
        for name, place in running[:SHOWN]
    ]
    more = f"; and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
    return f"trained {done} of {total}{left}; running: {'; '.join(names)}{more}"
