"""AlignedLinear: a linear layer that pads each row of its inputs to a multiple of 16 bytes on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.dimensions import autocast_on, in_transform
from regard.fast.joint_linear import ALIGNMENT, HalfCopy, linear_in_half
from regard.fast.twin import Twin

__all__ = ["AlignedLinear", "linear"]


class AlignedLinear(nn.Linear, Twin):
    """A linear layer whose number of inputs is not a multiple of 8, on CUDA under autocast; see linear()."""

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """Tensor cores read rows of 16 bytes."""
        weight = module.weight
        if weight.dtype != torch.float32:
            return [f"the weights are {weight.dtype}"]
        if weight.device.type != "cuda":
            return [f"the layer is on {weight.device.type}"]
        return [] if weight.shape[1] % ALIGNMENT else ["rows are aligned"]

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x + b, like torch.nn.functional.linear, but with aligned rows on CUDA under autocast.

    x: (..., I).
    weight: W, (O, I).
    bias: b, (O,) or None.

    Returns a tensor (..., O). On CUDA under autocast, x and weight are padded with zeros to a multiple of 8
    columns, which does not change the result. Without padding, rows whose size is not a multiple of 8 cannot
    be read with 16-byte loads. In Bahdanau et al., for example, the sizes of the embeddings (620) and of the
    maxout layer (500) are not multiples of 8.

    In training under autocast, the gradients of W and b are not rounded to half precision.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3)).tolist()
    [[3.0, 3.0]]
    """
    device = weight.device.type
    if device != "cuda" or not autocast_on(device) or torch.compiler.is_compiling() or in_transform():
        return functional.linear(x, weight, bias)
    if x.dim() < 2 or not x.numel() or x.dtype == torch.float64:
        return functional.linear(x, weight, bias)
    return padded_linear(x, weight, bias, torch.get_autocast_dtype(device))


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute W x + b in dtype, with columns of zeros up to a multiple of ALIGNMENT."""
    missing = (0, -weight.shape[1] % ALIGNMENT)
    wide, biases = functional.pad(weight, missing), () if bias is None else (bias,)
    half = wide.detach().to(dtype)
    copy = HalfCopy((wide,), half, biases, half if bias is None else bias.detach().to(dtype))
    return linear_in_half(functional.pad(x.to(dtype), missing), copy)[0]
