"""Linear layers for the few rows of a decoding step on a CPU, with packed weights.

A matrix product with few rows first copies the weights to another layout, which takes longer than the
product. oneDNN can do it once. With 5 rows and 256 x 8000 weights on a core, it was about 10 times faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Linear", "packed_linear"]

Linear = Callable[[Tensor], Tensor]
"""A function from inputs (..., M) to outputs (..., N)."""

FEWEST_WEIGHTS = 2**17
"""The smallest number of weights for which packing pays off."""


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias), for x (..., M).

    rows: the expected number of rows of x; others are possible.

    The weights are packed if this is faster: on a CPU, in float32, with more than one row. Later changes of
    the weights then have no effect.
    """

    def plain(x: Tensor) -> Tensor:
        return functional.linear(x, weight, bias)

    suits = weight.device.type == "cpu" and weight.dtype == torch.float32 and not torch.is_grad_enabled()
    if not suits or rows < 2 or weight.numel() < FEWEST_WEIGHTS or not _available():
        return plain
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        compute = torch.ops.mkldnn._linear_pointwise
        compute(weight.new_zeros(rows, weight.shape[1]), packed, bias, "none", [], "")
    except (RuntimeError, NotImplementedError):  # another version of PyTorch or another processor
        return plain

    def fast(x: Tensor) -> Tensor:
        return compute(x.flatten(0, -2), packed, bias, "none", [], "").view(*x.shape[:-1], -1)

    return fast


def _available() -> bool:
    """Return whether this build of PyTorch has the operators of oneDNN, and the user did not disable them."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    enabled = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return enabled and all(hasattr(torch.ops.mkldnn, each) for each in names)
