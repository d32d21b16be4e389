"""linear() with padded rows gives the same results and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.layers.aligned_linear import _AlignedLinear, _padded, linear


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


@pytest.mark.parametrize(("sizes", "bias"), [((5,), True), ((8,), False), ((3, 2, 6), True), ((4, 4), True)])
def test_layer_of_several_parts_has_the_results_and_gradients_of_cat(sizes: tuple[int, ...], bias: bool):
    """float64: only the order of additions differs. The parts are transposed, as those of a decoder are."""
    torch.manual_seed(0)
    double = {"dtype": torch.float64, "requires_grad": True}
    parts = [torch.randn(3, 2, size, **double).transpose(0, 1) for size in sizes]
    weight, b = torch.randn(4, sum(sizes), **double), torch.randn(4, **double) if bias else None
    leaves = [*parts, weight, *([b] if bias else [])]
    results = []
    for output in (
        functional.linear(torch.cat(parts, -1), weight, b),
        _AlignedLinear.apply(torch.float64, weight, b, *parts),
    ):
        results.append([output, *torch.autograd.grad(output.sin().sum(), leaves)])
    for plain, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-14)


def test_weight_gradients_in_half_precision_are_not_rounded():
    torch.manual_seed(0)
    x, weight = torch.randn(50, 5), torch.randn(4, 5, requires_grad=True)
    output = _AlignedLinear.apply(torch.bfloat16, weight, None, x)
    assert output.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(output.sum(), weight)
    exact = x.bfloat16().double().sum(0).expand(4, -1)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-5, atol=1e-5)
