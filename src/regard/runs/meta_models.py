"""Models on the meta device: their tensors have names and shapes, but use no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["on_meta_device"]


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Create tensors on the meta device inside the `with` block. Their initial values are not sampled.

    >>> with on_meta_device():
    ...     nn.Embedding(10**12, 512).weight.shape
    torch.Size([1000000000000, 512])
    """
    with torch.device("meta"), _WithoutSampling():
        yield


class _WithoutSampling(TorchFunctionMode):
    """Context manager in which normal_() does nothing to tensors on the meta device.

    Such tensors have no values. The first normal_() of a process on this device makes PyTorch import about
    900 modules, which takes seconds.
    """

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function in (Tensor.normal_, nn.init.normal_):
            tensor = arguments[0] if arguments else options["tensor"]
            if tensor.is_meta:
                return tensor
        return function(*arguments, **(options or {}))
