"""Choosing: whether what is not attention is run by a kernel of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import TRITON, interpreting

__all__ = ["by_kernel"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def by_kernel(tensor: Tensor) -> bool:
    """Whether steps of cells, and losses, on such tensors are run by kernels, which sum in float32.

    >>> by_kernel(torch.zeros(1, dtype=torch.float64))
    False
    """
    device = tensor.device.type
    return TRITON and tensor.dtype in DTYPES and (device == "cuda" or (device == "cpu" and interpreting()))
