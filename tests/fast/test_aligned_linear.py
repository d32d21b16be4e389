"""linear() with padded rows gives the same results and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.fast.aligned_linear import AlignedLinear, linear, padded_linear


def test_cpu_uses_functional_linear():
    x, weight = torch.randn(2, 5), torch.randn(3, 5)
    assert linear(x, weight).equal(functional.linear(x, weight))


@pytest.mark.parametrize(("size", "bias"), [(5, True), (8, False), (11, True)])
def test_padding_does_not_change_results_or_gradients(size: int, bias: bool):
    """float64: only the order of additions differs. The input is transposed, as that of a decoder is."""
    torch.manual_seed(0)
    double = {"dtype": torch.float64, "requires_grad": True}
    x = torch.randn(3, 2, size, **double).transpose(0, 1)
    weight, b = torch.randn(4, size, **double), torch.randn(4, **double) if bias else None
    leaves = [x, weight, *([b] if bias else [])]
    results = []
    for output in (functional.linear(x, weight, b), padded_linear(x, weight, b, torch.float64)):
        results.append([output, *torch.autograd.grad(output.sin().sum(), leaves)])
    for plain, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-14)


def test_reasons():
    for device, size, reason in (("cpu", 5, "on cpu"), ("meta", 5, "on meta"), ("cpu", 8, "on cpu")):
        assert reason in AlignedLinear.reasons(nn.Linear(size, 3, device=device))[0]
    assert "float64" in AlignedLinear.reasons(nn.Linear(5, 3).double())[0]


def test_weight_gradients_in_half_precision_are_not_rounded():
    torch.manual_seed(0)
    x, weight = torch.randn(50, 5), torch.randn(4, 5, requires_grad=True)
    output = padded_linear(x, weight, None, torch.bfloat16)
    assert output.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(output.sum(), weight)
    exact = x.bfloat16().double().sum(0).expand(4, -1)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-5, atol=1e-5)
