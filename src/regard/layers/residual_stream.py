"""ResidualStream: the sum x + f(x) of a Transformer, added when the next layer normalisation is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.dimensions import autocast_on
from regard.kernels.choice import by_kernel
from regard.layers.joint_linear import is_hooked

__all__ = ["ResidualStream"]


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """A tensor x, and the output of a sublayer that will be added to it after dropout.

    The sum is not computed at once: on CUDA, one kernel computes it together with the layer normalisation
    that follows (kernels/training/residual_norm.py).

    x: (..., M).
    change: (..., M), the output of a sublayer, or None.
    bias: (M,), a bias of the sublayer that is not yet added to `change`, or None. The kernel adds it and
        computes its gradient.
    dropout: dropout probability of `change`, 0 in eval mode.

    >>> x = torch.ones(1, 2)
    >>> ResidualStream(x).add(3 * x).total()
    tensor([[4., 4.]])
    """

    x: Tensor
    change: Tensor | None = None
    bias: Tensor | None = None
    dropout: float = 0.0

    def add(self, change: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> ResidualStream:
        """Return the stream with another change to add."""
        return ResidualStream(self.total(), change, bias, dropout)

    def total(self) -> Tensor:
        """Return x + dropout(change + bias)."""
        if self.change is None:
            return self.x
        change = self.change if self.bias is None else self.change + self.bias.to(self.change.dtype)
        return self.x + functional.dropout(change, self.dropout, self.dropout > 0)

    def normalized(self, norm: nn.Module, wide: bool = False) -> tuple[ResidualStream, Tensor]:
        """Return a stream without change, and norm(total).

        norm: usually nn.LayerNorm(M).
        wide: if False, the kernel may return norm(total) in the autocast dtype, for the input of a linear
            layer. If True, it has the dtype of x.

        >>> norm, stream = nn.LayerNorm(4), ResidualStream(torch.randn(2, 4), torch.randn(2, 4))
        >>> torch.equal(stream.normalized(norm)[1], norm(stream.total()))
        True
        """
        if not self._by_kernel(norm):
            total = self.total()
            return ResidualStream(total), norm(total)
        from regard.kernels.training.residual_norm import ResidualNorm

        assert isinstance(norm, nn.LayerNorm)
        device = self.x.device.type
        dtype = torch.get_autocast_dtype(device) if autocast_on(device) and not wide else self.x.dtype
        inputs = (self.x, self.change, self.bias, norm.weight, norm.bias)
        total, normed = ResidualNorm.apply(*inputs, norm.eps, self.dropout, dtype)
        return ResidualStream(self.x if self.change is None else total), normed

    def _by_kernel(self, norm: nn.Module) -> bool:
        """Whether one kernel can compute sum and layer normalisation: in training, on CUDA."""
        x = self.x
        if torch.compiler.is_compiling() or not (norm.training and torch.is_grad_enabled()):
            return False
        if not by_kernel(x) or type(norm) is not nn.LayerNorm or norm.bias is None or is_hooked(norm):
            return False
        from regard.kernels.training.residual_norm import WIDEST

        same = self.change is None or self.change.shape == x.shape
        return same and tuple(norm.normalized_shape) == x.shape[-1:] and x.shape[-1] <= WIDEST
