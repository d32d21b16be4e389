"""Choosing: whether what is not attention is run by a kernel of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import TRITON, interpreting

__all__ = ["by_kernel", "is_current"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def by_kernel(tensor: Tensor) -> bool:
    """Whether steps of cells, and losses, on such tensors are run by kernels, which sum in float32.

    >>> by_kernel(torch.zeros(1, dtype=torch.float64))
    False
    """
    device = tensor.device.type
    if not TRITON or tensor.dtype not in DTYPES:
        return False
    return is_current(tensor.device) if device == "cuda" else device == "cpu" and interpreting()


def is_current(device: torch.device) -> bool:
    """Whether what is launched now runs there: of several CUDA devices, Triton and graphs take the current.

    >>> is_current(torch.device("cpu"))
    True
    """
    return device.type != "cuda" or device.index in (None, torch.cuda.current_device())
