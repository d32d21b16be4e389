# mypy: disable-error-code="no-untyped-def"
"""Dropout inside a kernel.

The factor of an element depends only on the seed and on the indices of the element: head, query and key of an
attention weight, row and column of another tensor. So all kernels of the forward and the backward pass
compute the same factor, whatever their tiles are. Seeds are drawn on the device, so that each replay of a
CUDA graph draws new ones.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["dropout_factors", "kept", "limit", "next_seed", "seeds_together"]

SEEDS = 64
"""Number of seeds that are drawn at once inside seeds_together()."""

_local = threading.local()


def next_seed(device: torch.device) -> Tensor:
    """Return a new seed, int64 of shape (1,)."""
    drawn: list[Tensor] | None = getattr(_local, "seeds", None)
    if drawn is None:
        return torch.randint(2**62, (1,), device=device)
    if not drawn or drawn[-1].device != device:
        # Every second number is unused: so all seeds are aligned to 16 bytes, and kernels compile once.
        drawn[:] = torch.randint(2**62, (SEEDS, 2), device=device)[:, :1].unbind()
    return drawn.pop()


@contextmanager
def seeds_together() -> Iterator[None]:
    """Draw many seeds with one kernel inside the `with` block.

    A CUDA graph must contain the whole block: seeds that were drawn before would be the same in each replay.

    >>> with seeds_together():
    ...     one, two = (next_seed(torch.device("cpu")) for _ in range(2))
    >>> bool(one != two)
    True
    """
    before, _local.seeds = getattr(_local, "seeds", None), []
    try:
        yield
    finally:
        _local.seeds = before


def limit(dropout: float) -> int:
    """Return the argument `limit` of kept() for this dropout probability.

    >>> limit(0.5) == 2**15
    True
    """
    return round(dropout * 2**16)


@triton.jit
def dropout_factors(seed, dropout, both, rows, columns, queries, keys):
    """Return the dropout factors of a tile of weights, 0 or 1 / (1 - dropout), (ROWS, COLUMNS).

    seed: pointer to the seed.
    dropout: probability of 0.
    both: index of batch and head, in int64.
    rows, columns: indices of the queries and keys of the tile.
    """
    index = (both * queries + rows)[:, None] * keys + columns[None, :]
    return tl.where(tl.rand(tl.load(seed), index) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _mixed(x, key):
    """Mix the bits of x, a uint32 tensor, and of a key: each bit of the result depends on all bits of both.

    The multipliers and shifts are those of the integer hash `lowbias32` by Chris Wellons.
    """
    x ^= x >> 16
    x = _times(x, 0x7FEB352D)
    x ^= x >> 15
    x ^= key
    x = _times(x, 0x846CA68B)
    return x ^ (x >> 16)


@triton.jit
def _times(x, number: tl.constexpr):
    """Return x * number modulo 2^32. The operator * is not used: in debug mode, it checks for overflow."""
    return tl.mul(x, tl.full((), number, tl.uint32), sanitize_overflow=False)


@triton.jit
def _plus(x, y):
    """Return x + y modulo 2^32."""
    return tl.add(x, y, sanitize_overflow=False)


@triton.jit
def kept(seed, limit, rows, columns):
    """Return which elements of a tile (ROWS, COLUMNS) dropout keeps.

    seed: pointer to the seed, an int64.
    limit: the probability of dropping an element, as limit() returns it.
    rows, columns: indices of the rows and columns of the tile.

    A hash of the indices is used instead of tl.rand(), which takes several times as many instructions per
    element. Two adjacent columns share a hash, and each uses 16 bits of it. So the probability is rounded to
    a multiple of 2^-16.
    """
    both = tl.load(seed)
    low, high = (both & 0xFFFFFFFF).to(tl.uint32), (both >> 32).to(tl.uint32)
    row = rows.to(tl.uint32)
    first = _mixed(_plus(row, low), high)
    second = _mixed(_plus(_times(row, 0x9E3779B1), high), low)
    pair = _times(columns.to(tl.uint32) >> 1, 0x85EBCA77)
    bits = _mixed(_plus(pair[None, :], first[:, None]), second[:, None])
    half = tl.where((columns & 1)[None, :] == 0, bits & 0xFFFF, bits >> 16).to(tl.int32)
    return half >= limit
