"""A linear layer that pads each row of its inputs to a multiple of 16 bytes, as tensor cores need."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.dimensions import autocast_on

__all__ = ["linear"]

ALIGNMENT = 8
"""Number of half-precision elements in 16 bytes."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x + b, like torch.nn.functional.linear, but with aligned rows on CUDA under autocast.

    x: (..., I).
    weight: W, (O, I).
    bias: b, (O,) or None.

    Returns a tensor (..., O). On CUDA under autocast, x and weight are padded with zeros to a multiple of 8
    columns, which does not change the result. Without padding, rows whose size is not a multiple of 8 cannot
    be read with 16-byte loads. In Bahdanau et al., for example, the sizes of the embeddings (620) and of the
    maxout layer (500) are not multiples of 8.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3)).tolist()
    [[3.0, 3.0]]
    """
    device, padding = x.device.type, -x.shape[-1] % ALIGNMENT
    if not padding or device != "cuda" or not autocast_on(device):
        return functional.linear(x, weight, bias)
    return functional.linear(*_padded(x, weight, padding, torch.get_autocast_dtype(device)), bias)


def _padded(x: Tensor, weight: Tensor, padding: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Convert x and weight to dtype, and append `padding` columns of zeros to each."""
    return functional.pad(x.to(dtype), (0, padding)), functional.pad(weight.to(dtype), (0, padding))
