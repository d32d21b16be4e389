"""The objects that Trainer.steps() and its caller exchange: requests and results of training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Sent", "StepDone", "StepRequest"]


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


Sent = Mapping[str, Tensor] | StepDone | None
"""The object that the caller of Trainer.steps() sends to this generator after each training step. It is the
summed losses by name; StepDone, if the weights are already updated; or None, to cancel the step and stop the
training."""
