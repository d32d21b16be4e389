"""AlignedLinear: a linear layer that pads each row of its inputs to a multiple of 16 bytes on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.dimensions import autocast_on, in_transform
from regard.fast.joint_linear import column_sums, product_in_float32
from regard.fast.twin import Twin

__all__ = ["AlignedLinear", "linear"]

ALIGNMENT = 8
"""Number of half-precision elements in 16 bytes."""


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
    return _AlignedLinear.apply(torch.get_autocast_dtype(device), x, weight, bias)


class _AlignedLinear(torch.autograd.Function):
    """linear() in half precision. dtype: the dtype of the product."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x_RI, weight_OI = (_aligned(each, dtype) for each in (x.flatten(0, -2), weight))
        with torch.autocast(x_RI.device.type, enabled=False):
            if bias is None:
                result = torch.mm(x_RI, weight_OI.T)
            else:
                result = torch.addmm(bias.to(dtype), x_RI, weight_OI.T)
        ctx.save_for_backward(x_RI, weight_OI)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, weight_OI = ctx.saved_tensors
        d_RO, inputs = dresult.reshape(len(x_RI), -1), ctx.shape[-1]
        dx, dweight, dbias = None, None, None
        with torch.autocast(x_RI.device.type, enabled=False):
            if ctx.needs_input_grad[1]:
                dx = torch.mm(d_RO, weight_OI)[:, :inputs].reshape(ctx.shape).to(ctx.dtype)
            if ctx.needs_input_grad[2]:
                dweight = product_in_float32(d_RO.T, x_RI)[:, :inputs].contiguous()
            if ctx.needs_input_grad[3]:
                dbias = column_sums(d_RO)
        return None, dx, dweight, dbias


def _aligned(x_RI: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in dtype, with columns of zeros up to a multiple of ALIGNMENT."""
    return functional.pad(x_RI.to(dtype), (0, -x_RI.shape[1] % ALIGNMENT))
