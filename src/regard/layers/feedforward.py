"""FeedForward: the position-wise feed-forward layer of a Transformer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from regard.errors import UnknownName

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
        hidden = ACTIVATIONS[self.activation](self.inner(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        result: Tensor = self.outer(self.dropout(hidden))
        return result
