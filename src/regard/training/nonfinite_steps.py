"""Training steps whose loss, gradient or weights are NaN or infinite: find them, and say what helps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from regard.errors import RegardError, message
from regard.training.settings import Training

__all__ = ["NonFinite", "first_nonfinite", "step_error", "weight_error"]


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


def step_error(step: int, value: float, last: str) -> NonFinite:
    """Return the error to raise if the loss of a training step or its gradient norm is NaN or infinite.

    step: number of the step.
    value: the loss or the gradient norm, whichever is NaN or infinite.
    last: a text for the message, such as "the last checkpoint is step 100".
    """
    problem = f"the loss or its gradient is {value}; {last}"
    hint = "try a lower learning rate, a longer warm-up or precision='float32'"
    return NonFinite(message(f"step {step}", problem, expected="a finite loss", hint=hint))


def weight_error(step: int, name: str, settings: Training, last: str) -> NonFinite:
    """Return the error to raise if a weight is NaN or infinite after a training step.

    step: number of the step.
    name: the name of the weight. "" if the weight that is not finite is in another process.
    settings: the training settings, for the hint about learning_rate and max_grad_norm.
    last: a text for the message, such as "the last checkpoint is step 100".
    """
    problem = f"{name or 'a weight in another process'} is NaN or infinite; this step is not saved; {last}"
    rate, norm = settings.learning_rate, settings.max_grad_norm
    hint = f"resume with a lower learning rate (training.learning_rate is {rate:g}), a longer warm-up "
    hint += f"(training.warmup_steps) or gradient clipping (training.max_grad_norm is {norm:g})"
    return NonFinite(message(f"step {step}", problem, expected="finite weights", hint=hint))
