"""Rotary position embedding, which rotates queries and keys."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import ArgumentError, UnknownName, message
from regard.positions.embedded import angles
from regard.positions.position import Position

__all__ = ["Rotary"]


class Rotary(Position):
    """Rotary position embedding (RoPE): rotate queries q and keys k, so that q . k depends on their distance.

    (q_2i, q_2i+1) at position t is rotated by the angle t / base^(2i/D)   (Su et al. 2021, eq. 15)

    size: the width of a head, D. It must be even.
    base: the base of the angles. A larger base gives smaller angles.
    pairs: which two elements are rotated together. "halves": (i, i + D/2), as in Llama. "neighbours": (2i, 2i
        + 1), as in the paper. The two differ only in the order of the elements of a vector.

    >>> import regard, torch
    >>> rotary, q, k = regard.Rotary(size=4), torch.ones(1, 4), torch.ones(1, 4)
    >>> near = rotary(q, start=7) @ rotary(k, start=5).T  # positions 7 and 5
    >>> far = rotary(q, start=107) @ rotary(k, start=105).T  # far from the start, the same distance
    >>> torch.allclose(near, far)
    True
    """

    acts: ClassVar[str] = "queries and keys"

    def __init__(self, size: int, base: float = 10000.0, pairs: str = "halves"):
        super().__init__()
        if size % 2:
            raise ArgumentError(message("Rotary()", f"size is {size}", expected="an even number"))
        if pairs not in ("halves", "neighbours"):
            raise UnknownName("pairing of Rotary", pairs, ("halves", "neighbours"))
        self.size, self.base, self.pairs = size, base, pairs

    def extra_repr(self) -> str:
        return f"size={self.size}, base={self.base:g}, pairs={self.pairs!r}"

    def forward(self, vectors: Tensor, start: int = 0) -> Tensor:
        """Rotate each query or key, (..., T, D), by the angles of its position, beginning with `start`."""
        if vectors.shape[-1] != self.size:
            shown = {"vectors": (vectors, "BHTD")}
            problem = f"the vectors have width {vectors.shape[-1]}, but this Rotary has size {self.size}"
            raise ArgumentError(message("Rotary()", problem, shown, f"D = {self.size}"))
        return self.rotate(vectors, *self.turns(start, start + vectors.shape[-2], vectors))

    def turns(self, first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles of positions `first` to `last - 1`, (last - first, D / 2).

        like: a tensor with the dtype and device of the results.
        """
        angle = angles(first, last, self.size, self.base, like.device)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def rotate(self, vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate vectors (..., D) by angles; cos and sin can be broadcast to (..., D / 2)."""
        if self.pairs == "halves":
            x, y = vectors.chunk(2, -1)
            return torch.cat((x * cos - y * sin, y * cos + x * sin), -1)
        x, y = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack((x * cos - y * sin, y * cos + x * sin), -1).flatten(-2)

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Rotary:
        return cls(width // heads)
