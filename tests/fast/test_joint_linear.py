"""Linear layers that are computed by one matrix product."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.fast.joint_linear import joint_linear, linear_in_half


@pytest.mark.parametrize("bias", [True, False])
def test_linear_in_half_computes_as_autocast_and_keeps_float32_gradients(bias: bool):
    torch.manual_seed(0)
    layers = [nn.Linear(16, size, bias) for size in (8, 24)]
    x = torch.randn(3, 5, 16, requires_grad=True)
    parameters = [each for layer in layers for each in layer.parameters()]
    signs = [torch.randn(3, 5, size) for size in (8, 24)]

    def results(kind: str) -> list[torch.Tensor]:
        if kind == "half":
            outputs = linear_in_half(x, [layer._parameters for layer in layers], torch.bfloat16)
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                outputs = [layer(x) for layer in layers]
        loss = sum((output * sign).sum() for output, sign in zip(outputs, signs, strict=True))
        return [*outputs, *torch.autograd.grad(loss, (x, *parameters))]

    half, autocast, exact = (results(kind) for kind in ("half", "autocast", "exact"))
    for mine, theirs, right in zip(half, autocast, exact, strict=True):
        assert mine.dtype == theirs.dtype
        error, allowed = (((each - right).norm() / right.norm()).item() for each in (mine, theirs))
        assert error <= 1.5 * allowed + 2**-9
    # The gradient of a weight is not rounded to bfloat16.
    assert not torch.equal(half[3], half[3].bfloat16().float())


def test_frozen_weights_have_no_gradient():
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    layers[1].requires_grad_(False)
    outputs = linear_in_half(torch.randn(2, 8), [layer._parameters for layer in layers], torch.bfloat16)
    sum(each.sum() for each in outputs).backward()
    assert layers[0].weight.grad is not None and layers[0].weight.grad.dtype == torch.float32
    assert layers[1].weight.grad is None and layers[1].bias.grad is None


def test_hooks_of_a_layer_are_called():
    layers, calls = [nn.Linear(2, 3), nn.Linear(2, 3)], []
    layers[1].register_forward_hook(lambda *_: calls.append(1))
    joint_linear(torch.zeros(1, 2), layers)
    assert calls == [1]
