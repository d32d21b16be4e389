"""Slowdown: detect that training steps have become much slower than at the start of the run."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["Slowdown", "slowdown_warning"]

UNTIMED = 3
"""Number of first steps that are not measured, because they allocate memory and compile kernels."""

WINDOW = 10
"""Number of steps in a median. The median speed of the recent steps is compared with the first steps."""

FRACTION = 1 / 3
"""A slowdown is reported if the recent speed is below this fraction of the speed at the start."""


class Slowdown:
    """Compare the speed of recent training steps with the speed at the start, and report a slowdown once.

    The speeds are medians over WINDOW steps, so that a single slow step is not reported.

    In this example, steps are slow from index 20 on. At index 25, six of the last ten steps are slow, so the
    median is slow:

    >>> slowdown = Slowdown()
    >>> speeds = [1000.0] * 20 + [100.0] * 10
    >>> [slowdown.add_step(tokens=speed, seconds=1.0) for speed in speeds].index((1000.0, 100.0))
    25
    """

    def __init__(self) -> None:
        self._steps = 0
        self._first: float | None = None
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._reported = False

    def add_step(self, tokens: float, seconds: float) -> tuple[float, float] | None:
        """Add the number of target tokens and the duration of a training step; report a slowdown.

        When a slowdown is detected, the result is the speed at the start and the recent speed, in target
        tokens per second. Otherwise, and always after the first report, the result is None.
        """
        self._steps += 1
        if self._steps <= UNTIMED or self._reported:
            return None
        self._recent.append(tokens / max(seconds, 1e-9))
        if len(self._recent) < WINDOW:
            return None
        speed = median(self._recent)
        if self._first is None:
            self._first = speed
        if speed >= FRACTION * self._first:
            return None
        self._reported = True
        return self._first, speed


def slowdown_warning(first: float, recent: float, threads: int, counted: str = "target tokens") -> str:
    """Return a warning that training has slowed down.

    first: speed at the start, in `counted` per second.
    recent: speed now, in `counted` per second.
    threads: number of CPU threads of this process. With more than one thread, the warning suggests --threads
        1.
    counted: the unit of the speeds, e.g. "target tokens".

    >>> print(slowdown_warning(5540.0, 77.0, threads=1))
    training has slowed down: 77 target tokens/s, 5,540 at the start; other programs may be using this machine
    """
    text = f"training has slowed down: {recent:,.0f} {counted}/s, {first:,.0f} at the start"
    text += "; other programs may be using this machine"
    return text if threads == 1 else f"{text}: stop with Ctrl-C and resume with --threads 1"
