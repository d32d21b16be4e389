"""Aligned products: what is padded changes nothing."""

from __future__ import annotations

import torch
from torch.nn import functional

from regard.layers.aligned_linear import _padded, linear


def test_padding_changes_nothing():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64)
    found = []
    for made in (
        functional.linear(x, weight, bias),
        functional.linear(*_padded(x, weight, 3, x.dtype), bias),
    ):
        found.append([made, *torch.autograd.grad(made.sin().sum(), [x, weight])])
    for plain, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain, rtol=0, atol=1e-14)


def test_elsewhere_it_is_the_product_itself():
    x, weight = torch.randn(2, 5), torch.randn(3, 5)
    assert linear(x, weight).equal(functional.linear(x, weight))
