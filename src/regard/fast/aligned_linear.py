"""AlignedLinear: a linear layer that pads each row of its inputs to a multiple of 16 bytes on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.dimensions import autocast_on, in_transform
from regard.fast.joint_linear import ALIGNMENT, column_sums, in_aligned_rows, product_in_float32
from regard.fast.twin import Twin

__all__ = ["AlignedLinear", "linear", "padded_linear", "pads"]


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
    if not pads(x, weight):
        return functional.linear(x, weight, bias)
    return padded_linear(x, weight, bias, torch.get_autocast_dtype(weight.device.type))


def pads(x: Tensor, weight: Tensor) -> bool:
    """Whether linear() pads the rows of x and weight."""
    device = weight.device.type
    if device != "cuda" or not autocast_on(device) or torch.compiler.is_compiling() or in_transform():
        return False
    return x.dim() >= 2 and x.numel() > 0 and x.dtype != torch.float64


def padded_linear(
    x: Tensor | Sequence[Tensor], weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Compute W x + b in dtype, with columns of zeros up to a multiple of ALIGNMENT.

    x: a tensor, or several tensors that are concatenated along their last dimension.
    """
    parts = (x,) if isinstance(x, Tensor) else tuple(x)
    with torch.autocast(weight.device.type, enabled=False):
        return _PaddedLinear.apply(dtype, weight, bias, *parts)


class _PaddedLinear(torch.autograd.Function):
    """W x + b in dtype, where x is the concatenation of `parts`; see padded_linear()."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        rows, wide = in_aligned_rows(parts, dtype).flatten(0, -2), in_aligned_rows((weight,), dtype)
        result = torch.mm(rows, wide.T) if bias is None else torch.addmm(bias.to(dtype), rows, wide.T)
        ctx.save_for_backward(rows, wide)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        ctx.parts = [(each.shape, each.dtype) for each in parts]
        return result.view(*parts[0].shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        rows, wide = ctx.saved_tensors
        d, (of_weight, of_bias), first = dresult.flatten(0, -2), ctx.dtypes, 0
        with torch.autocast(rows.device.type, enabled=False):
            width = sum(shape[-1] for shape, _ in ctx.parts)
            dweight = product_in_float32(d.T, rows)[:, :width].to(of_weight)
            dbias = None if of_bias is None else column_sums(d).to(of_bias)
            dparts = list[Tensor | None]()
            dx = torch.mm(d, wide) if any(ctx.needs_input_grad[3:]) else None
            for (shape, dtype), needed in zip(ctx.parts, ctx.needs_input_grad[3:], strict=True):
                part = slice(first, first + shape[-1])
                dparts.append(dx[:, part].view(shape).to(dtype) if needed and dx is not None else None)
                first += shape[-1]
        return None, dweight, dbias, *dparts
