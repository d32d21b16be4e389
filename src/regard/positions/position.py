"""Position: base class of position schemes."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

__all__ = ["Position"]


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
