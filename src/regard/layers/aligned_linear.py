"""A linear layer that pads each row of its inputs to a multiple of 16 bytes, as tensor cores need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.dimensions import autocast_on, in_transform
from regard.kernels.choice import by_kernel
from regard.layers.joint_linear import column_sums, is_plain_linear, product_in_float32

__all__ = [
    "ALIGNMENT",
    "aligned",
    "call_linear",
    "fill_columns",
    "first_columns",
    "linear",
    "linear_of_parts",
]

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

    In training under autocast, the gradients of W and b are not rounded to half precision.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3)).tolist()
    [[3.0, 3.0]]
    """
    return linear_of_parts((x,), weight, bias)


def call_linear(layer: nn.Module, *parts: Tensor) -> Tensor:
    """Return the output of a linear layer for the concatenation of the parts along the last dimension.

    The layer is called if it has hooks, or if another module has replaced the nn.Linear. Otherwise,
    linear_of_parts() reads its weights.

    >>> layer, parts = nn.Linear(5, 2), (torch.ones(1, 3), torch.ones(1, 2))
    >>> torch.allclose(call_linear(layer, *parts), layer(torch.cat(parts, -1)))
    True
    """
    if is_plain_linear(layer):
        own: dict[str, Any] = layer._parameters
        return linear_of_parts(parts, own["weight"], own["bias"])
    result: Tensor = layer(_joined(parts))
    return result


def linear_of_parts(parts: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute linear(x, weight, bias), where x is the concatenation of the parts along the last dimension.

    parts: tensors (..., I_1), (..., I_2), ... They can have different dtypes.

    >>> linear_of_parts((torch.ones(1, 3), torch.ones(1, 2)), torch.ones(2, 5)).tolist()
    [[5.0, 5.0]]
    """
    device = weight.device.type
    half = device == "cuda" and autocast_on(device)
    if half and _trains(parts, weight):
        return _AlignedLinear.apply(torch.get_autocast_dtype(device), weight, bias, *parts)
    x = _joined(parts)
    padding = -x.shape[-1] % ALIGNMENT
    if not padding or not half:
        return functional.linear(x, weight, bias)
    return functional.linear(*_padded(x, weight, padding, torch.get_autocast_dtype(device)), bias)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the concatenation of the parts along the last dimension, in the dtype of the first part."""
    first, *others = parts
    return torch.cat([first, *(each.to(first.dtype) for each in others)], -1) if others else first


def _padded(x: Tensor, weight: Tensor, padding: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Convert x and weight to dtype, and append `padding` columns of zeros to each."""
    return functional.pad(x.to(dtype), (0, padding)), functional.pad(weight.to(dtype), (0, padding))


def _trains(parts: Sequence[Tensor], weight: Tensor) -> bool:
    """Whether _AlignedLinear computes the layer: in training with weights in float32."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or in_transform():
        return False
    known = all(each.dim() > 1 and each.numel() and each.dtype != torch.float64 for each in parts)
    return known and weight.dtype == torch.float32


class _AlignedLinear(torch.autograd.Function):
    """linear_of_parts() in half precision, with few kernels: each part is copied once.

    dtype: the dtype of the product.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        x_RI, weight_OI = aligned(parts, dtype).flatten(0, -2), aligned((weight,), dtype)
        with torch.autocast(x_RI.device.type, enabled=False):
            if bias is None:
                result = torch.mm(x_RI, weight_OI.T)
            else:
                result = torch.addmm(bias.to(dtype), x_RI, weight_OI.T)
        ctx.save_for_backward(x_RI, weight_OI)
        ctx.inputs, ctx.dtypes = weight.shape[1], [each.dtype for each in parts]
        ctx.sizes, ctx.rows = [each.shape[-1] for each in parts], parts[0].shape[:-1]
        return result.view(*ctx.rows, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, weight_OI = ctx.saved_tensors
        d_RO, needed = dresult.reshape(len(x_RI), -1), ctx.needs_input_grad
        dweight, dbias = None, None
        dparts: Sequence[Tensor | None] = [None] * len(ctx.sizes)
        with torch.autocast(x_RI.device.type, enabled=False):
            if any(needed[3:]):
                dx = torch.mm(d_RO, weight_OI).view(*ctx.rows, -1)[..., : ctx.inputs]
                slices = zip(dx.split(ctx.sizes, -1), ctx.dtypes, needed[3:], strict=True)
                dparts = [each.to(dtype) if wanted else None for each, dtype, wanted in slices]
            if needed[1]:
                dweight = first_columns(product_in_float32(d_RO.T, x_RI), ctx.inputs)
            if needed[2]:
                dbias = column_sums(d_RO)
        return None, dweight, dbias, *dparts


def aligned(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the concatenation of the parts in dtype, with columns of zeros up to a multiple of ALIGNMENT."""
    inputs = sum(each.shape[-1] for each in parts)
    padding = -inputs % ALIGNMENT
    if len(parts) == 1 and not padding:
        return parts[0].to(dtype).contiguous()
    whole = parts[0].new_empty(*parts[0].shape[:-1], inputs + padding, dtype=dtype)
    fill_columns(whole, parts)
    return whole


def fill_columns(whole: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy the parts to adjacent columns of `whole`, a contiguous tensor, and set its other columns to 0."""
    sizes = [each.shape[-1] for each in parts]
    padding = whole.shape[-1] - sum(sizes)
    if by_kernel(whole) and all(each.dim() in (2, 3) and each.stride(-1) == 1 for each in parts):
        from regard.kernels.training.row_copy import copy_rows

        sizes[-1] += padding
        for place, part in zip(whole.flatten(0, -2).split(sizes, -1), parts, strict=True):
            copy_rows(part, place)
        return
    *places, rest = whole.split([*sizes, padding], -1)
    for place, part in zip(places, parts, strict=True):
        place.copy_(part)
    rest.zero_()


def first_columns(whole: Tensor, columns: int) -> Tensor:
    """Return a contiguous copy of the first columns of a matrix; the matrix itself if it has no others.

    A product whose result has a number of columns that is not a multiple of ALIGNMENT takes up to three times
    as long as a product with more columns and this copy.
    """
    if columns == whole.shape[1]:
        return whole
    if not by_kernel(whole):
        return whole[:, :columns].contiguous()
    from regard.kernels.training.row_copy import copy_rows

    result = whole.new_empty(len(whole), columns)
    copy_rows(whole[:, :columns], result)
    return result
