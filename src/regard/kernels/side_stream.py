"""A second CUDA stream for work that does not depend on the loops of a recurrent model.

The kernels of a recurrent step use a small part of a GPU. Other kernels of the same training step can run at
the same time on a second stream, also in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["forked", "side_stream", "use_side_stream"]

_streams: dict[int, torch.cuda.Stream] = {}
_active: set[int] = set()


@contextmanager
def use_side_stream(device: torch.device) -> Iterator[None]:
    """Allow work on a second stream inside the `with` block, which ends when all of this work is done.

    The block contains the forward and the backward pass of a training step. On other devices than CUDA, it
    does nothing.

    >>> with use_side_stream(torch.device("cpu")):
    ...     print(side_stream(torch.device("cpu")))
    None
    """
    if device.type != "cuda":
        yield
        return
    number = torch.cuda.current_device() if device.index is None else device.index
    if number not in _streams:
        _streams[number] = torch.cuda.Stream(number)
    _active.add(number)
    try:
        yield
    finally:
        _active.discard(number)
        torch.cuda.current_stream(number).wait_stream(_streams[number])


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the second stream of a device, or None outside use_side_stream()."""
    return _streams[device.index] if device.type == "cuda" and device.index in _active else None


@contextmanager
def forked(side: torch.cuda.Stream, *inputs: Tensor) -> Iterator[None]:
    """Run the `with` block on the second stream, after the work of the current stream so far.

    inputs: all tensors of the current stream that the block reads.
    """
    side.wait_stream(torch.cuda.current_stream(side.device))
    with torch.cuda.stream(side):
        yield
    for each in inputs:
        each.record_stream(side)
