"""FeedForward: the position-wise feed-forward layer of a Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.backends.sdpa import device_capability
from regard.errors import UnknownName
from regard.kernels.choice import by_kernel
from regard.kernels.seeds import next_seed
from regard.layers.joint_linear import (
    are_plain_linear,
    is_hooked,
    joint_linear,
    linear_without_bias,
    product_in_float32,
    trains_in_half,
)

__all__ = ["ACTIVATIONS", "FeedForward"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swiglu": functional.silu,
}
"""The activation functions of FeedForward, by name. With "swiglu", the result of silu is also multiplied by
the output of a third linear layer (Shazeer 2020)."""

HOPPER = 9
"""Major compute capability for which kernels/training/activated_product.py was measured, and that uses it."""

MANY_ROWS = 512
"""Minimum number of rows for kernels/training/activated_product.py: fewer rows do not fill the GPU."""


class FeedForward(nn.Module):
    """Two linear layers with an activation between, applied to each position (Vaswani et al. 2017, eq. 2).

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2

    width: size of inputs and outputs.
    inner: size of the hidden layer.
    activation: "relu", "gelu" or "swiglu". With "swiglu", FFN(x) = (silu(x W_1) * x W_3) W_2, without biases.
    dropout: dropout probability after the activation.

    >>> import regard, torch
    >>> from regard.layers import FeedForward
    >>> FeedForward(width=8, inner=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, inner: int, activation: str = "relu", dropout: float = 0.0):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnknownName("activation", activation, ACTIVATIONS)
        gated = activation == "swiglu"
        self.activation = activation
        self.inner = nn.Linear(width, inner, bias=not gated)
        self.gate = nn.Linear(width, inner, bias=False) if gated else None
        self.outer = nn.Linear(inner, width, bias=not gated)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward layer to each position of x, (..., width). The result has the shape of x."""
        return joint_linear(self._hidden(x), [self.outer])[0]

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the result of forward() before its last bias is added, and this bias, or None."""
        if is_hooked(self):
            return self(x), None
        if self._by_product(x):
            weights = self.inner.weight, self.inner.bias, self.outer.weight
            dtype = torch.get_autocast_dtype(x.device.type)
            return _ReluProducts.apply(x, *weights, self.dropout.p, dtype), self.outer.bias
        return linear_without_bias(self._hidden(x), self.outer)

    def _hidden(self, x: Tensor) -> Tensor:
        """Return the hidden layer, after activation and dropout."""
        if self._by_kernel(x):
            from regard.kernels.training.activation_dropout import ActivationDropout

            hidden, bias = linear_without_bias(x, self.inner)
            return ActivationDropout.apply(hidden, bias, self.activation, self.dropout.p)
        hidden, *gate = joint_linear(x, [self.inner] if self.gate is None else [self.inner, self.gate])
        hidden = ACTIVATIONS[self.activation](hidden)
        return self.dropout(hidden * gate[0] if gate else hidden)

    def _by_product(self, x: Tensor) -> bool:
        """Whether one kernel computes the first layer, ReLU and dropout: in training in half precision."""
        if self.activation != "relu" or not self._by_kernel(x) or x.numel() // x.shape[-1] < MANY_ROWS:
            return False
        layers = self.inner, self.outer
        if not are_plain_linear(layers) or not trains_in_half(x, [each._parameters for each in layers]):
            return False
        return self.inner.bias is not None and device_capability(x.device)[0] == HOPPER

    def _by_kernel(self, x: Tensor) -> bool:
        """Whether one kernel can compute activation and dropout: in training, on CUDA, without a gate."""
        trains = not torch.compiler.is_compiling() and self.training and torch.is_grad_enabled()
        plain = self.gate is None and type(self.dropout) is nn.Dropout and not is_hooked(self.dropout)
        return trains and plain and by_kernel(x)


class _ReluProducts(torch.autograd.Function):
    """dropout(relu(x W_1^T + b_1)) W_2^T in half precision, with kernels/training/activated_product.py.

    x: (..., M). inner, bias, outer: W_1 (N, M), b_1 (N,) and W_2 (O, N), in float32.
    dropout: dropout probability. dtype: the dtype of the products.

    As in linear_in_half(), the gradients of weights and bias are not rounded to half precision.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, inner: Tensor, bias: Tensor, outer: Tensor, dropout: float, dtype: torch.dtype
    ) -> Tensor:
        from regard.kernels.training.activated_product import activated_product

        rows = x.to(dtype).reshape(-1, x.shape[-1]).contiguous()
        inner, outer = inner.to(dtype), outer.to(dtype)
        seed = next_seed(x.device) if dropout else None
        with torch.autocast(x.device.type, enabled=False):
            hidden = activated_product(rows, inner, bias, seed, dropout)
            result = torch.mm(hidden, outer.T)
        ctx.save_for_backward(rows, inner, outer, hidden)
        ctx.dropout, ctx.dtype, ctx.shape = dropout, x.dtype, x.shape
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.training.activated_product import activated_product_gradient

        rows, inner, outer, hidden = ctx.saved_tensors
        d = dresult.reshape(-1, len(outer)).contiguous()
        with torch.autocast(rows.device.type, enabled=False):
            dsum, dbias = activated_product_gradient(d, outer, hidden, ctx.dropout)
            douter = product_in_float32(d.T, hidden)
            dx = torch.mm(dsum, inner).view(ctx.shape).to(ctx.dtype)
            dinner = product_in_float32(dsum.T, rows)
        return dx, dinner, dbias, douter, None, None
