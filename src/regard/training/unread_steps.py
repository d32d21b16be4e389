"""UnreadSteps: training steps that were launched on the device and whose results the host has not read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from regard.training.step_results import StepDone, StepLate

__all__ = ["LATE", "UnreadStep", "UnreadSteps"]

LATE = 8
"""The host reads the results of a step on the device this number of steps later. Until then, it prepares and
launches the next steps."""


class UnreadStep(NamedTuple):
    """A training step, with what the host needs to log it later, or to report that its loss is not finite.

    step: number of the step.
    batches: the batches of the step.
    tokens: number of target tokens of the step in all processes.
    rate: the learning rate.
    """

    step: int
    batches: list[Any]
    tokens: int
    rate: float


class UnreadSteps:
    """A queue of steps on the device. Their results are read in order.

    The duration of a step is the time between two reads. The host launches steps faster than the device
    executes them, so the duration of a launch would be too short. If several steps are read at once, the time
    is divided equally between them.

    clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._queue: deque[tuple[UnreadStep, StepLate]] = deque()
        self._since = 0.0

    def add(self, step: UnreadStep, late: StepLate, began: float) -> None:
        """Add a step that was launched.

        began: the time at which the step began, before its batches were read.
        """
        if not self._queue:
            self._since = began
        self._queue.append((step, late))

    def read(self, left: int = 0) -> Iterator[tuple[UnreadStep, StepDone, float | None, float]]:
        """Wait for the results of all steps but the latest `left` steps, and yield them in order.

        Yields the step, its result, its first value that is NaN or infinite (see StepLate.wait()), and its
        duration in seconds.
        """
        ready = [self._queue.popleft() for _ in range(len(self._queue) - left)]
        results = [(step, *late.wait()) for step, late in ready]
        now = self._clock()
        for step, done, bad in results:
            yield step, done, bad, (now - self._since) / len(results)
        if results:
            self._since = now
