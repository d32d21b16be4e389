"""DeviceUpdate: clip gradients and update the weights without waiting for the device.

The learning rate and the other numbers of a step are tensors on the device, so that a CUDA graph can contain
the update. If a loss or gradient is NaN or infinite, the update of this step and of all later steps changes
nothing. So the host can check the results several steps later, and still has the weights before the bad step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.training.optimizer import Average

__all__ = ["DeviceUpdate", "own_gradients"]

Lists = tuple[list[Tensor], ...]
"""Weights, gradients, and each tensor of the optimizer state, of the parameters of a group."""


class DeviceUpdate:
    """Clip gradients, update the weights with AdamW or SGD, and update the moving average, on the device.

    optimizer: the optimizer from build_optimizer(). Its state is updated, but its step() is not called.
    average: the moving average of the weights, or None.
    device: the device of the weights.
    limit: gradients with a larger norm are scaled down to this norm. inf disables clipping.

    failed: 0.0, and 1.0 from the first step on that has a loss or gradient that is NaN or infinite. While it
        is 1.0, apply() changes neither the weights, nor the optimizer state, nor the moving average.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        device: torch.device,
        limit: float = math.inf,
    ):
        self.optimizer, self.average, self.limit = optimizer, average, limit
        self.failed = torch.zeros((), device=device)
        # CUDA kernels read a float32 learning rate. On a CPU, float64 gives the bits of a Python float.
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self._rate = torch.zeros((), device=device, dtype=dtype)
        self._average_rate = torch.zeros((), device=device)

    def set_step(self, step: int, rate: float) -> None:
        """Set the number of the next step and its learning rate. This does not wait for the device."""
        self._rate.fill_(rate)
        if self.average is not None:
            self._average_rate.fill_(self.average.rate(step))

    @torch.no_grad()
    def apply(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Update the parameters. Return the norm of the gradients before clipping, and `failed`.

        parameters: the parameters that have a gradient.
        gradients: the gradient of each parameter. They can be scaled in place (see own_gradients()).
        total: the loss of the step, without dimensions.
        """
        by_parameter = dict(zip(map(id, parameters), gradients, strict=True))
        groups = [self._lists(group, by_parameter) for group in self.optimizer.param_groups]
        norm, divisor = self._clip(gradients, total)
        for group, lists in zip(self.optimizer.param_groups, groups, strict=True):
            if lists[0]:
                self._update_group(group, lists, divisor)
        if self.average is not None:
            self.average.update_by(self._average_rate * (1 - self.failed))
        return norm, self.failed

    def _clip(self, gradients: Sequence[Tensor], total: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the norm of the gradients, and update `failed`. Return the norm, and a divisor or None.

        The kernels of the optimizer divide the gradients by the divisor. Other gradients are scaled in place.
        """
        norm = nn.utils.get_total_norm(gradients)
        finite = total.isfinite() & norm.isfinite()
        self.failed.copy_(torch.maximum(self.failed, (~finite).float()))
        if math.isinf(self.limit):
            return norm, None
        if norm.is_cuda:
            return norm, torch.clamp((norm + 1e-6) / self.limit, min=1.0)
        torch._foreach_mul_(list(gradients), torch.clamp(self.limit / (norm + 1e-6), max=1.0))
        return norm, None

    def _lists(self, group: dict[str, Any], gradients: dict[int, Tensor]) -> Lists:
        """Return the weights of a group that have a gradient, the gradients, and the optimizer state."""
        members = [each for each in group["params"] if id(each) in gradients]
        states = [self._state(each, group) for each in members]
        names: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "step")
        if isinstance(self.optimizer, torch.optim.SGD):
            names = ("momentum_buffer",) if group["momentum"] else ()
        moments = [[state[name] for state in states] for name in names]
        return [each.detach() for each in members], [gradients[id(each)] for each in members], *moments

    def _update_group(self, group: dict[str, Any], lists: Lists, divisor: Tensor | None) -> None:
        """Update the weights of a group; its gradients are divided by `divisor`, unless it is None."""
        if isinstance(self.optimizer, torch.optim.SGD):
            weights, gradients, *momentum = lists
            torch._fused_sgd_(
                weights,
                gradients,
                momentum[0] if momentum else [],
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=self._rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                found_inf=self.failed,
                grad_scale=divisor,
            )
            return
        weights, gradients, means, squares, steps = lists
        # With a single tensor instead of a list, _foreach_add_() would read it on the host.
        torch._foreach_add_(steps, [1 - self.failed] * len(steps))
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=self._rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.failed,
            grad_scale=divisor,
        )

    def _state(self, parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the optimizer state of a parameter. Before its first step, the state is created as zeros."""
        state = self.optimizer.state[parameter]
        if not state:
            if isinstance(self.optimizer, torch.optim.SGD):
                if group["momentum"]:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            else:
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
        return state


def own_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Copy those results of torch.autograd.grad() that cannot be changed in place by an optimizer.

    A gradient is copied if its strides differ from the strides of its parameter, or if another parameter has
    the same gradient tensor.

    >>> weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    >>> same = torch.autograd.grad((weights[0] + weights[1]).sum(), weights)
    >>> first, second = own_gradients(weights, same)
    >>> first.data_ptr() == second.data_ptr()
    False
    """
    owned, seen = list[Tensor](), set[int]()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient.stride() != parameter.stride() or gradient.data_ptr() in seen:
            gradient = torch.empty_like(parameter).copy_(gradient)
        seen.add(gradient.data_ptr())
        owned.append(gradient)
    return owned
