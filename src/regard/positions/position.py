"""Position: what every position scheme is, and the angles that two of them share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

__all__ = ["Position", "angles"]


class Position(nn.Module):
    """A scheme that tells positions; `acts` says on what: embeddings, queries and keys, or scores.

    >>> import regard
    >>> regard.Rotary(size=4).acts
    'queries and keys'
    """

    acts: ClassVar[str] = "embeddings"

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Position:
        """Make one for a model of this width, this many heads and sequences up to this length."""
        raise TypeError(f"{cls.__name__} does not say how it is built")


def angles(first: int, last: int, size: int, base: float, device: torch.device) -> Tensor:
    """t / base^(2i/size) for each position t and each i, (last - first, size / 2), in float32."""
    rate = base ** (-torch.arange(0, size, 2, device=device).float() / size)
    return torch.arange(first, last, device=device).float()[:, None] * rate
