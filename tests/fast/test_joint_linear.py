"""Linear layers that are computed by one matrix product."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.fast.joint_linear import copy_in_half, joined, linear_in_half


@pytest.mark.parametrize("bias", [True, False])
def test_linear_in_half_computes_as_autocast_and_keeps_float32_gradients(bias: bool):
    torch.manual_seed(0)
    layers = nn.Linear(16, 8, bias), nn.Linear(16, 24, bias)
    x = torch.randn(3, 5, 16, requires_grad=True)
    parameters = [each for layer in layers for each in layer.parameters()]
    signs = [torch.randn(3, 5, size) for size in (8, 24)]

    def results(kind: str) -> list[torch.Tensor]:
        if kind == "half":
            outputs = linear_in_half(x, copy_in_half([layers], torch.bfloat16)[layers])
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
    layers = nn.Linear(8, 8), nn.Linear(8, 8)
    layers[1].requires_grad_(False)
    outputs = linear_in_half(torch.randn(2, 8), copy_in_half([layers], torch.bfloat16)[layers])
    sum(each.sum() for each in outputs).backward()
    assert layers[0].weight.grad is not None and layers[0].weight.grad.dtype == torch.float32
    assert layers[1].weight.grad is None and layers[1].bias.grad is None


def test_parts_are_joined_without_a_copy_only_if_they_are_adjacent():
    whole = torch.randn(2, 3, 10)
    parts = whole.split([4, 4, 2], -1)
    assert joined(parts).data_ptr() == whole.data_ptr() and torch.equal(joined(parts), whole)
    inner = whole[..., 2:8].split(3, -1)  # in the middle of the rows of a larger tensor
    assert joined(inner).data_ptr() == inner[0].data_ptr()
    others = [parts[::-1], parts[::2], (parts[0], parts[1].clone()), (parts[0].double(), parts[1].double())]
    others += [whole.transpose(0, 1).unbind(0), [torch.zeros(1).expand(2, 3)] * 2, (whole[:1], whole[1:])]
    for parts in others:
        assert torch.equal(joined(parts), torch.cat(list(parts), -1))
