"""The error bound of gradients by the Fourier series, as kernels/additive_series.py states it.

The calls have no mask and no projections. In some channels all rows are saturated, and one of the two
exponentials is a small float16 number, because |q| or |k| is between 6.9 and 9.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from regard.kernels.additive_series import REACH, SATURATED

__all__ = ["Call", "assert_within_bound", "generated"]


class Unprojected(regard.Score):
    """Additive score without projections of query and key."""

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector

    def plan_key(self) -> tuple[Any, ...]:
        return self.vector.shape, self.vector.dtype, self.vector.requires_grad


class Call(NamedTuple):
    """Query (B, H, T, D), key (B, H, S, D), value (B, H, S, E), vector (1, D), the gradient of the output,
    and the temperature."""

    query: Tensor
    key: Tensor
    value: Tensor
    vector: Tensor
    doutput: Tensor
    temperature: float


def generated(draw: random.Random, queries: int, keys: int, width: int, device: str) -> Call:
    """Return a random call in bfloat16. The first two channels are saturated, with large |k| or large |q|."""
    near, far = 2 * torch.rand(2, 2, queries, width) - 1, 4 * torch.rand(2, 2, keys, width) - 2
    large = draw.choice(("key", "query"))
    low = draw.uniform(6.9, 8.0)
    source = far if large == "key" else near
    for channel, sign in ((0, 1.0), (1, -1.0)):
        source[..., channel] = sign * (low + 0.9 * torch.rand(source.shape[:-1]))
        other = near if large == "key" else far
        other[..., channel] = 2 * torch.rand(other.shape[:-1]) - 1
    if large == "query":
        far = far.clamp(-1, 1)
    assert near.abs().max() + far.abs().max() < REACH.value
    depth = draw.choice((8, 20))
    value, doutput = torch.randn(2, 2, keys, depth), torch.randn(2, 2, queries, depth)
    tensors = [near, far, value, torch.randn(1, width), doutput * draw.choice((1e-6, 1.0, 100.0))]
    return Call(*(each.to(device).bfloat16() for each in tensors), draw.choice((0.5, 1.0, 2.0)))


def gradients(call: Call) -> list[Tensor]:
    """Return the gradients of query, key and vector that the backend "fused" computes, in float64."""
    query, key, value, vector = (each.clone().requires_grad_() for each in call[:4])
    output = regard.attention(
        query,
        key,
        value,
        score=Unprojected(vector),
        select=regard.Soft(call.temperature),
        backend="fused",
    ).output
    return [each.double() for each in torch.autograd.grad(output, (query, key, vector), call.doutput)]


def assert_within_bound(call: Call) -> float:
    """Assert the stated bounds for each element; return the largest error as a share of its bound."""
    query, key, value, vector, doutput = (each.double() for each in call[:5])
    x_BHTSD = query[:, :, :, None] + key[:, :, None]
    tanh = x_BHTSD.tanh()
    weights = ((tanh * vector[0]).sum(-1) / call.temperature).softmax(-1)
    dweights = doutput @ value.mT
    g = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) / call.temperature
    slope = g[..., None] * vector[0] * (1 - tanh**2)
    exact = [slope.sum(3), slope.sum(2), (g[..., None] * tanh).sum((0, 1, 2, 3))[None]]
    worst = 0.0
    ours = gradients(call)
    for at, over in ((0, 3), (1, 2)):
        sums = g.abs().sum(over)[..., None] * vector[0].abs()
        saturated = (x_BHTSD.amin(over) > SATURATED.value + 0.02) | (
            x_BHTSD.amax(over) < -SATURATED.value - 0.02
        )
        assert saturated[..., :2].all() and not saturated.all()
        exponentials = (g.abs()[..., None] * (-2 * x_BHTSD.abs()).exp()).sum(over) * vector[0].abs()
        bound = torch.where(saturated, 2.0**-8 * 4 * exponentials + 2e-7 * sums, 1.1e-3 * sums)
        worst = max(worst, _share(ours[at], exact[at], bound))
    return max(worst, _share(ours[2], exact[2], 1.3e-3 * g.abs().sum().expand_as(exact[2])))


def _share(ours: Tensor, exact: Tensor, bound: Tensor) -> float:
    """Return the largest error divided by its bound. The result is rounded to bfloat16 after the bound."""
    share = ((ours - exact).abs() / (bound + 2.0**-8 * exact.abs())).max().item()
    assert share <= 1.0, f"the error is {share:.3g} times its bound"
    return share
