"""Position schemes that add a vector for each position to the embeddings: noise, learned, sinusoidal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, message
from regard.positions.position import Position

__all__ = ["Learned", "Noise", "Sinusoidal", "angles"]


class Embedded(Position):
    """Base class of position schemes that add one vector per position to embeddings (..., T, M)."""

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return the vectors of positions `first` to `last - 1`, (last - first, M).

        like: the embeddings. Their device is used for the result, and their shape is shown in error messages.
        """
        raise TypeError(f"{type(self).__name__} does not implement rows()")

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Add the vector of its position to each embedding (..., T, M). The first position is `start`."""
        rows = self.rows(start, start + embeddings.shape[-2], embeddings)
        if start < 0 or rows.shape[-1] != embeddings.shape[-1]:
            raise ArgumentError(
                message(
                    f"{type(self).__name__}()",
                    f"start is {start}, the embeddings have width {embeddings.shape[-1]}, "
                    f"and the position vectors have width {rows.shape[-1]}",
                    {"embeddings": (embeddings, "BTM")},
                    f"start >= 0 and M = {rows.shape[-1]}",
                )
            )
        return embeddings + rows.to(embeddings.dtype)


class Table(Embedded):
    """Base class of position schemes that store one vector per position in a table, (length, M)."""

    table: Tensor

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        length, width = self.table.shape
        if last > length:
            raise ArgumentError(
                message(
                    f"{type(self).__name__}()",
                    f"positions {first} to {last - 1} are needed, but the table has length {length}",
                    {"embeddings": (like, "BTM")},
                    f"start + T <= {length}",
                    f"use {type(self).__name__}({width}, length={last}), or Sinusoidal, which has no limit",
                )
            )
        return self.table[first:last]


class Noise(Table):
    """Add a fixed random vector per position.

    x_t + n_t, with n_t ~ N(0, 1/M), where x_t is the embedding at position t

    The vectors depend on `seed`, are saved with the model, and are not trained. This scheme is a simple
    baseline.

    width: size of the embeddings, M.
    length: maximum number of positions.
    seed: seed of the random vectors.

    In this example, the token at position 3 gets the same vector in two cases: the sequence is processed as a
    whole, or it is processed from start=3 on:

    >>> import regard, torch
    >>> x = torch.zeros(1, 5, 8)
    >>> noise = regard.Noise(width=8, length=16, seed=1)
    >>> torch.equal(noise(x)[:, 3:4], noise(x[:, :1], start=3))
    True
    """

    def __init__(self, width: int, length: int, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("table", torch.randn(length, width, generator=generator) / math.sqrt(width))

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Noise:
        return cls(width, length)


class Learned(Table):
    """Add a learned vector per position (Gehring et al. 2017; Devlin et al. 2018).

    x_t + p_t, where x_t is the embedding at position t, and p_t a parameter

    width: size of the embeddings, M.
    length: maximum number of positions.

    >>> import regard, torch
    >>> regard.Learned(width=8, length=16)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, length: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width) / math.sqrt(width))

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Learned:
        return cls(width, length)


class Sinusoidal(Embedded):
    """Add sinusoidal position encodings (Vaswani et al. 2017, section 3.5).

    p_t[2i] = sin(t / 10000^(2i/M)),  p_t[2i+1] = cos(t / 10000^(2i/M)), for position t and width M

    >>> import regard, torch
    >>> regard.Sinusoidal(width=4)(torch.zeros(2, 4))
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, width: int, base: float = 10000.0):
        super().__init__()
        self.width, self.base = width, base

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        angle = angles(first, last, self.width, self.base, like.device)
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[:, : self.width]

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Sinusoidal:
        return cls(width)


def angles(first: int, last: int, size: int, base: float, device: torch.device) -> Tensor:
    """Return the angles t / base^(2i/size) as a float32 tensor (last - first, size / 2).

    t stands for the positions `first` to `last - 1`, and i for the integers from 0 to size / 2 - 1.
    """
    rate = base ** (-torch.arange(0, size, 2, device=device).float() / size)
    return torch.arange(first, last, device=device).float()[:, None] * rate
