"""Update the weights of stacked models together: clip each gradient, apply AdamW or SGD to all models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.training.loop import Trainer
from regard.training.optimizer import STATES
from regard.training.stacked_seeds import StackedSeeds
from regard.training.step_results import StepDone
from regard.training.task import Loss

__all__ = ["StackedUpdates", "can_update"]


def can_update(trainers: Sequence[Trainer]) -> bool:
    """Return whether the weights of stacked models can be updated together.

    This is possible if all models use AdamW at the same step, or if all models use SGD without momentum.
    """
    if all(type(each.optimizer) is torch.optim.SGD for each in trainers):
        return not any(each.optimizer.defaults["momentum"] for each in trainers)
    if not all(type(each.optimizer) is torch.optim.AdamW for each in trainers):
        return False
    states = [state for each in trainers for state in each.optimizer.state.values()]
    return len({float(state.get("step", 0.0)) for state in states}) <= 1


class StackedUpdates:
    """Clip the gradients of stacked models, and update their weights with AdamW or SGD, all models together.

    Updating ten models one by one would launch ten times as many kernels, and the CPU would wait for the GPU
    ten times per step. Here, the optimizer states of all models are stacked too. The optimizer of each
    trainer has views of the stacked tensors, so that the trainer can save its state as before.

    stacked: the stacked models. They share their parameters with the single models (StackedSeeds.share()).
    trainers: the trainers of these models, in the same order.
    names: the names of the parameters that the loss depends on.
    """

    def __init__(self, stacked: StackedSeeds, trainers: Sequence[Trainer], names: Sequence[str]):
        self._trainers = list(trainers)
        self._limit = trainers[0].settings.max_grad_norm or math.inf
        self._has_state = type(trainers[0].optimizer) is torch.optim.AdamW
        own = [dict(each.model.named_parameters()) for each in trainers]
        self._groups = []
        for group in trainers[0].optimizer.param_groups:
            members = {id(each) for each in group["params"]}
            chosen = [name for name in names if id(own[0][name]) in members]
            parameters = [stacked.parameters[f"model.{name}"].data for name in chosen]
            kept = chosen if self._has_state else []
            states = [self._stack_state([each[name] for each in own]) for name in kept]
            self._groups.append((group, chosen, parameters, states))

    def _stack_state(self, parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
        """Stack the optimizer state of one parameter over all models. The trainers get views of it."""
        optimizers = [each.optimizer for each in self._trainers]
        states = [each.state[parameter] for each, parameter in zip(optimizers, parameters, strict=True)]
        stacked: dict[str, Tensor] = {}
        for kind in sorted(STATES):
            if kind == "step":  # equal for all models
                first = states[0].get(kind, torch.zeros((), device=parameters[0].device))
                stacked[kind] = first.detach().clone().float()
            else:
                pairs = zip(states, parameters, strict=True)
                values = [state.get(kind, torch.zeros_like(own)) for state, own in pairs]
                stacked[kind] = torch.stack([each.detach() for each in values])
        for number, state in enumerate(states):
            for kind, value in stacked.items():
                state[kind] = value if kind == "step" else value[number]
        return stacked

    @torch.no_grad()
    def apply(self, named: Mapping[str, Tensor], loss: Loss, rate: float) -> list[StepDone] | None:
        """Update the weights of all n models, and return the results in their order.

        named: the gradients by parameter name, each (n, ...). They are scaled in place.
        loss: the losses of the models, each (n,).
        rate: the learning rate.

        Returns None, and changes nothing, if a loss or a gradient is NaN or infinite.
        """
        used = [named[name] for _, chosen, _, _ in self._groups for name in chosen]
        norms = torch.linalg.vector_norm(torch.cat([each.flatten(1) for each in used], 1), dim=1)
        names = list(loss.shown)
        values = torch.stack([*loss.shown.values(), loss.total, norms]).T.tolist()
        if not all(math.isfinite(value) for row in values for value in row[-2:]):
            return None
        scale = (self._limit / (norms + 1e-6)).clamp(max=1.0)
        for each in used:
            each.mul_(scale.view(-1, *(1 for _ in each.shape[1:])))
        for group, chosen, parameters, states in self._groups:
            gradients = [named[name] for name in chosen]
            if self._has_state:
                _apply_adamw(group, parameters, gradients, states, rate)
            else:
                _apply_sgd(group, parameters, gradients, rate)
        return [StepDone(dict(zip(names, row, strict=False)), row[-1]) for row in values]

    def release(self) -> None:
        """Give each trainer its own copy of the optimizer state, so that it can update its model alone."""
        for trainer in self._trainers:
            for state in trainer.optimizer.state.values():
                for kind, value in state.items():
                    state[kind] = value.clone()


def _apply_adamw(
    group: Mapping[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    rate: float,
) -> None:
    means, squares, steps = ([each[kind] for each in states] for kind in STATE_ORDER)
    torch._foreach_add_(steps, 1)
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        parameters, gradients, means, squares, [], steps,
        lr=rate, beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"],
        amsgrad=False, maximize=False,
    )  # fmt: skip


def _apply_sgd(
    group: Mapping[str, Any], parameters: list[Tensor], gradients: list[Tensor], rate: float
) -> None:
    torch._fused_sgd_(
        parameters, gradients, [],
        lr=rate, weight_decay=group["weight_decay"], momentum=0.0, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    )  # fmt: skip


STATE_ORDER = ("exp_avg", "exp_avg_sq", "step")
