"""Training steps and their results, which a device may finish later than the host."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError


class NonFinite(RegardError):
    """Raised if a loss, a gradient or a weight of a training step is NaN or infinite.

    step: number of the step, counted from 1.
    """

    step: int = 0


@torch.no_grad()
def first_nonfinite(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor with a NaN or an infinite value, or "" if all values are finite.

    If all values are finite, the CPU waits for the GPU only once, not once per tensor.

    >>> first_nonfinite({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, math.inf])})
    'b'
    """
    floats = {name: each for name, each in tensors.items() if each.is_floating_point() and each.numel()}
    if not floats:
        return ""
    # Use the infinity norm (largest absolute value), because a sum of squares could overflow.
    norms = torch._foreach_norm(list(floats.values()), math.inf)
    finite = torch.stack([norm.isfinite() for norm in norms])
    if bool(finite.all()):
        return ""
    return list(floats)[finite.tolist().index(False)]


class StepRequest(NamedTuple):
    """A training step to take.

    step: number of the step, from 1.
    batches: the batches of this process.
    tokens: number of target tokens of the step, in all processes.
    rate: the learning rate.
    """

    step: int
    batches: list[Any]
    tokens: int
    rate: float


class StepDone(NamedTuple):
    """The result of a training step after the update of the weights.

    losses: the summed losses by name, without the loss that is minimised.
    norm: the norm of the gradient before clipping.
    """

    losses: Mapping[str, float]
    norm: float


class StepLate(NamedTuple):
    """The result of a training step that the device may not have finished yet.

    names: the names of the losses.
    row: the losses in this order, the minimised loss, the gradient norm, and 1 if this step or an earlier one
        had a loss or gradient that is NaN or infinite, else 0. The device copies these values to the host.
    finished: an event of the device after this copy; None if the row is already complete.
    """

    names: Sequence[str]
    row: Tensor
    finished: Any = None

    @classmethod
    def of(cls, names: Sequence[str], row: Tensor) -> StepLate:
        """Start to copy a row to the host, and return it without waiting for the device."""
        if row.device.type != "cuda":
            return cls(names, row.clone())
        host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True).copy_(row, non_blocking=True)
        finished = torch.cuda.Event(blocking=True)
        finished.record()
        return cls(names, host, finished)

    def wait(self) -> tuple[StepDone, float | None]:
        """Wait for the device; return the result of the step and its first value that is NaN or infinite.

        The second value is None if the weights were updated. Otherwise, it is the minimised loss or, if this
        loss is finite, the gradient norm.
        """
        if self.finished is not None:
            self.finished.synchronize()
        *sums, total, norm, failed = self.row.tolist()
        bad = (norm if math.isfinite(total) else total) if failed else None
        return StepDone(dict(zip(self.names, sums, strict=True)), norm), bad


LATE = 8
"""The host reads the results of a step on the device this number of steps later. Until then, it prepares and
launches the next steps."""


class UnreadSteps:
    """A queue of steps on the device. Their results are read in order.

    The duration of a step is the time between two reads. The host launches steps faster than the device
    executes them, so the duration of a launch would be too short. If several steps are read at once, the time
    is divided equally between them.

    clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._queue: deque[tuple[StepRequest, StepLate]] = deque()
        self._since = 0.0

    def add(self, step: StepRequest, late: StepLate, began: float) -> None:
        """Add a step that was launched.

        began: the time at which the step began, before its batches were read.
        """
        if not self._queue:
            self._since = began
        self._queue.append((step, late))

    def read(self, left: int = 0) -> Iterator[tuple[StepRequest, StepDone, float | None, float]]:
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
