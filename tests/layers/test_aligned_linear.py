"""linear() with padded rows gives the same results and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional

from regard.layers.aligned_linear import _padded, linear


def test_padding_does_not_change_results_or_gradients():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64)
    results = []
    for output in (
        functional.linear(x, weight, bias),
        functional.linear(*_padded(x, weight, 3, x.dtype), bias),
    ):
        results.append([output, *torch.autograd.grad(output.sin().sum(), [x, weight])])
    for plain, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, plain, rtol=0, atol=1e-14)


def test_cpu_uses_functional_linear():
    x, weight = torch.randn(2, 5), torch.randn(3, 5)
    assert linear(x, weight).equal(functional.linear(x, weight))
