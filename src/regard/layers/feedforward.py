"""FeedForward: the position-wise feed-forward layer of a Transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import UnknownName
from regard.kernels.choice import by_kernel
from regard.layers.joint_linear import (
    is_hooked,
    joint_linear,
    linear_without_bias,
)

__all__ = ["ACTIVATIONS", "FeedForward"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swiglu": functional.silu,
}
"""The activation functions of FeedForward, by name. With "swiglu", the result of silu is also multiplied by
the output of a third linear layer (Shazeer 2020)."""


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
        return linear_without_bias(self._hidden(x), self.outer)

    def _hidden(self, x: Tensor) -> Tensor:
        """Return the hidden layer, after activation and dropout."""
        if self._by_kernel(x):
            from regard.kernels.training.dropout import ActivationDropout

            hidden, bias = linear_without_bias(x, self.inner)
            return ActivationDropout.apply(hidden, bias, self.activation, self.dropout.p)
        hidden, *gate = joint_linear(x, [self.inner] if self.gate is None else [self.inner, self.gate])
        hidden = ACTIVATIONS[self.activation](hidden)
        return self.dropout(hidden * gate[0] if gate else hidden)

    def _by_kernel(self, x: Tensor) -> bool:
        """Whether one kernel can compute activation and dropout: in training, on CUDA, without a gate."""
        trains = not torch.compiler.is_compiling() and self.training and torch.is_grad_enabled()
        plain = self.gate is None and type(self.dropout) is nn.Dropout and not is_hooked(self.dropout)
        return trains and plain and by_kernel(x)
