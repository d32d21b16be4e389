"""Position: base class of position schemes, and the angles for Sinusoidal and Rotary."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

__all__ = ["Position", "angles"]


class Position(nn.Module):
    """Base class of position schemes.

    The attribute `acts` says what a scheme changes: "embeddings", "queries and keys" or "scores".

    >>> import regard
    >>> regard.Rotary(size=4).acts
    'queries and keys'
    """

    acts: ClassVar[str] = "embeddings"

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Position:
        """Create a position scheme of this class for a model; called by build_position().

        width, heads: width of the model and number of its attention heads.
        length: maximum length of a sequence.
        """
        raise TypeError(f"{cls.__name__} does not implement build()")


def angles(first: int, last: int, size: int, base: float, device: torch.device) -> Tensor:
    """Return the angles t / base^(2i/size) as a float32 tensor (last - first, size / 2).

    t stands for the positions `first` to `last - 1`, and i for the integers from 0 to size / 2 - 1.
    """
    rate = base ** (-torch.arange(0, size, 2, device=device).float() / size)
    return torch.arange(first, last, device=device).float()[:, None] * rate
