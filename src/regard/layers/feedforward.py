"""FeedForward: what a Transformer does to each position by itself, between attentions."""

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
"""What stands between the two linear maps; "swiglu" also multiplies by a third (Shazeer 2020)."""


class FeedForward(nn.Module):
    """Two linear maps with an activation between, the same for every position (Vaswani et al. 2017, eq. 2).

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, which is two convolutions of width 1 over positions.
    activation: relu, gelu, or swiglu: (silu(x W_1) * x W_3) W_2, without b.

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
        """x: (..., width)."""
        hidden = ACTIVATIONS[self.activation](self.inner(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.outer(self.dropout(hidden))
