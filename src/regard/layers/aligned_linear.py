"""Aligned products: rows of a multiple of 16 bytes, as tensor cores read them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.dimensions import autocast_on

__all__ = ["linear"]

EIGHTH = 8
"""Numbers of half precision in 16 bytes."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b, as torch.nn.functional.linear; on CUDA under autocast, widths of no multiple of 8 are padded.

    The 620 of Bahdanau's embeddings and the 500 of his maxout are none, and products of such rows cannot be
    loaded by whole words of memory there. What is added is 0, so the result is the same.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3)).tolist()
    [[3.0, 3.0]]
    """
    device, more = x.device.type, -x.shape[-1] % EIGHTH
    if not more or device != "cuda" or not autocast_on(device):
        return functional.linear(x, weight, bias)
    return functional.linear(*_padded(x, weight, more, torch.get_autocast_dtype(device)), bias)


def _padded(x: Tensor, weight: Tensor, more: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both in this precision, with so many columns of 0 behind theirs."""
    return functional.pad(x.to(dtype), (0, more)), functional.pad(weight.to(dtype), (0, more))
