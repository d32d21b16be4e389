"""The objects that Trainer.steps() and its caller exchange: requests and results of training steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Sent", "StepDone", "StepLate", "StepRequest"]


class StepRequest(NamedTuple):
    """A training step whose gradients the caller of Trainer.steps() has to compute.

    step: number of the step, from 1.
    batches: the batches of this process.
    tokens: number of target tokens of the step, in all processes.
    rate: the learning rate.
    """

    step: int
    batches: list[Any]
    tokens: int
    rate: float = 0.0


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


Sent = Mapping[str, Tensor] | StepDone | StepLate | None
"""The object that the caller of Trainer.steps() sends to this generator after each training step. It is the
summed losses by name; StepDone or StepLate, if the weights are already updated; or None, to cancel the step
and stop the training."""
