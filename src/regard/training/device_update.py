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

__all__ = ["DeviceUpdate", "can_update_on_device", "own_gradients"]


def can_update_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether DeviceUpdate supports this optimizer, such as those of build_optimizer()."""
    return type(optimizer) in (torch.optim.AdamW, torch.optim.SGD) and bool(optimizer.defaults["fused"])


class DeviceUpdate:
    """Clip gradients, update the weights with AdamW or SGD, and update the moving average, on the device.

    optimizer: the optimizer from build_optimizer(). Its state is updated, but its step() is not called.
    average: the moving average of the weights, or None.
    limit: gradients with a larger norm are scaled down to this norm. inf disables clipping.

    failed: 1.0 from the first step on whose loss or gradient is NaN or infinite, before that 0.0. While it is
        1.0, apply() changes neither the weights, nor the optimizer state, nor the moving average.
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
        gradients: the gradient of each parameter. They are scaled in place (see own_gradients()).
        total: the loss of the step, without dimensions.
        """
        norm = nn.utils.get_total_norm(gradients)
        finite = total.isfinite() & norm.isfinite()
        self.failed.copy_(torch.maximum(self.failed, (~finite).float()))
        divisor = None
        if not math.isinf(self.limit) and norm.is_cuda:  # the fused kernels divide the gradients
            divisor = torch.clamp((norm + 1e-6) / self.limit, min=1.0)
        elif not math.isinf(self.limit):
            torch._foreach_mul_(list(gradients), torch.clamp(self.limit / (norm + 1e-6), max=1.0))
        by_parameter = dict(zip(map(id, parameters), gradients, strict=True))
        for group in self.optimizer.param_groups:
            members = [each for each in group["params"] if id(each) in by_parameter]
            if members:
                self._update_group(group, members, [by_parameter[id(each)] for each in members], divisor)
        if self.average is not None:
            self.average.update_by(self._average_rate * (1 - self.failed))
        return norm, self.failed

    def _update_group(
        self,
        group: dict[str, Any],
        parameters: list[nn.Parameter],
        gradients: list[Tensor],
        divisor: Tensor | None,
    ) -> None:
        states = [self._state(each, group) for each in parameters]
        weights = [each.detach() for each in parameters]
        if isinstance(self.optimizer, torch.optim.SGD):
            torch._fused_sgd_(
                weights,
                gradients,
                [state["momentum_buffer"] for state in states] if group["momentum"] else [],
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
        steps = [state["step"] for state in states]
        # With a single tensor instead of a list, _foreach_add_() would read it on the host.
        torch._foreach_add_(steps, [1 - self.failed] * len(steps))
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
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
