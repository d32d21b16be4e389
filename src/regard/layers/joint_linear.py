"""Several linear layers of one input, computed by one matrix product on CUDA if the input has few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as modules

from regard.dimensions import autocast_on, in_transform

__all__ = ["is_hooked", "is_plain_linear", "joint_linear"]

FEW_ROWS = 4096
"""Largest number of rows of the input for which one product is used on CUDA, to launch fewer kernels. It
needs a copy of the weights."""


def joint_linear(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """Return the outputs of the layers for the same input x, each as layer(x) returns it, up to rounding.

    >>> layers, x = [nn.Linear(3, 4), nn.Linear(3, 2)], torch.randn(5, 3)
    >>> torch.allclose(joint_linear(x, layers)[1], layers[1](x), atol=1e-6)
    True
    """
    if not all(map(is_plain_linear, layers)):
        return [each(x) for each in layers]
    parameters: list[dict[str, Any]] = [layer._parameters for layer in layers]
    if not _joined(x, parameters):
        return [functional.linear(x, each["weight"], each["bias"]) for each in parameters]
    weights = [each["weight"] for each in parameters]
    bias = None if parameters[0]["bias"] is None else torch.cat([each["bias"] for each in parameters])
    sizes = [weight.shape[0] for weight in weights]
    return list(functional.linear(x, torch.cat(weights), bias).split_with_sizes(sizes, -1))


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling the layer only computes functional.linear() with its weight and bias.

    >>> is_plain_linear(nn.Linear(2, 3)), is_plain_linear(nn.Bilinear(2, 2, 3))
    (True, False)
    """
    return type(layer) is nn.Linear and not is_hooked(layer)


def _joined(x: Tensor, parameters: Sequence[dict[str, Any]]) -> bool:
    """Whether one product is used: on CUDA, for few rows. On a CPU, the copy of the weights takes longer."""
    if not x.is_cuda or x.numel() > FEW_ROWS * x.shape[-1]:
        return False
    if any((each["bias"] is None) != (parameters[0]["bias"] is None) for each in parameters):
        return False
    return not (torch.compiler.is_compiling() or in_transform() or autocast_on(x.device.type))


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling the layer does more than its forward()."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
        or "forward" in layer.__dict__
    )
