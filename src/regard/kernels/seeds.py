"""Seeds for the dropout of kernels, drawn on the device: each replay of a CUDA graph draws new ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["next_seed", "together"]

COUNT = 64
"""Number of seeds that are drawn at once inside together()."""

_local = threading.local()


def next_seed(device: torch.device) -> Tensor:
    """Return a new seed, int64 of shape (1,).

    >>> torch.manual_seed(0).device, next_seed(torch.device("cpu")).shape
    (device(type='cpu'), torch.Size([1]))
    """
    pool = getattr(_local, "pool", None)
    if pool is None:
        return torch.randint(2**62, (1,), device=device)
    if not pool or pool[-1].device != device:
        # Every second number is unused: so all seeds are aligned to 16 bytes, and kernels compile once.
        drawn = torch.randint(2**62, (COUNT, 2), device=device)
        pool[:] = [drawn[at, :1] for at in reversed(range(COUNT))]
    return pool.pop()


@contextmanager
def together() -> Iterator[None]:
    """Draw many seeds at once inside the `with` block, to launch fewer kernels.

    >>> with together():
    ...     one, two = (next_seed(torch.device("cpu")) for _ in range(2))
    >>> bool(one != two)
    True
    """
    before, _local.pool = getattr(_local, "pool", None), []
    try:
        yield
    finally:
        _local.pool = before
