"""Several linear layers of one input, computed by one matrix product in training in half precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on, in_transform
from regard.fast.hooks import are_plain_linear
from regard.kernels import by_kernel

__all__ = [
    "HalfCopies",
    "HalfCopy",
    "column_sums",
    "copy_in_half",
    "half_copies",
    "in_aligned_rows",
    "joint_linear",
    "linear_in_half",
    "linear_without_bias",
    "product_in_float32",
    "trains_in_half",
]

ALIGNMENT = 8
"""Under autocast, one product is used for sizes that are multiples of this number, as tensor cores need."""


@dataclass(frozen=True, eq=False)
class HalfCopy:
    """The parameters of linear layers with the same input, and their copies in half precision.

    weights: the weight of each layer, (O, I). weight: the copies, one after another.
    biases: the bias of each layer, (O,), or nothing. bias: the copies, one after another.
    """

    weights: Sequence[Tensor]
    weight: Tensor
    biases: Sequence[Tensor]
    bias: Tensor


HalfCopies = Mapping[tuple[nn.Module, ...], HalfCopy]
"""The copies for each matrix product, by the layers that it computes."""


def half_copies(x: Tensor, products: Iterable[tuple[nn.Module, ...]]) -> HalfCopies:
    """Copy the parameters of many layers to the autocast dtype, with one kernel for all of them.

    x: the input of one of the layers.
    products: the layers of each matrix product.

    Returns the copies for the products that linear_in_half() computes, see trains_in_half().
    """
    suitable = [layers for layers in products if are_plain_linear(layers) and trains_in_half(x, layers)]
    return copy_in_half(suitable, torch.get_autocast_dtype(x.device.type)) if suitable else {}


@torch.no_grad()
def copy_in_half(products: Iterable[tuple[nn.Module, ...]], dtype: torch.dtype) -> HalfCopies:
    """Copy the parameters of the linear layers of each product to `dtype`, with one kernel.

    >>> layers = nn.Linear(8, 16), nn.Linear(8, 8)
    >>> copy_in_half([layers], torch.bfloat16)[layers].weight.shape
    torch.Size([24, 8])
    """
    copies: dict[tuple[nn.Module, ...], HalfCopy] = {}
    places, parameters = list[Tensor](), list[Tensor]()
    for layers in products:
        weights: list[Any] = [layer.weight for layer in layers]
        biases: list[Any] = [layer.bias for layer in layers if layer.bias is not None]
        sizes = [len(each) for each in weights]
        weight = weights[0].new_empty(sum(sizes), weights[0].shape[1], dtype=dtype)
        bias = weight.new_empty(sum(sizes) if biases else 0)
        copies[layers] = HalfCopy(weights, weight, biases, bias)
        places += [*weight.split(sizes), *(bias.split(sizes) if biases else ())]
        parameters += [*weights, *biases]
    torch._foreach_copy_(places, parameters)
    return copies


def joint_linear(x: Tensor, layers: tuple[nn.Module, ...], copies: HalfCopies) -> list[Tensor]:
    """Return the outputs of the layers for the same input x, each as layer(x) returns it, up to rounding.

    copies: from half_copies(). One product computes layers that have copies.

    >>> layers, x = (nn.Linear(3, 4), nn.Linear(3, 2)), torch.randn(5, 3)
    >>> torch.equal(joint_linear(x, layers, {})[1], layers[1](x))
    True
    """
    return linear_in_half(x, copies[layers]) if layers in copies else [each(x) for each in layers]


def linear_without_bias(x: Tensor, layer: nn.Module, copies: HalfCopies) -> tuple[Tensor, Tensor | None]:
    """Return the output of a linear layer without its bias, and the bias; or the whole output, and None.

    The caller adds the bias in a kernel that also computes its gradient. The whole output is returned if the
    layer has no copy.
    """
    copy = copies.get((layer,))
    if copy is None:
        return layer(x), None
    return linear_in_half(x, replace(copy, biases=()))[0], copy.biases[0] if copy.biases else None


def linear_in_half(x: Tensor, copy: HalfCopy) -> list[Tensor]:
    """Compute several linear layers as under autocast, by one product in half precision.

    Differs from autocast: the gradients of weights and biases are not rounded to half precision.
    """
    bias = copy.bias if copy.biases else None
    return list(_HalfLinear.apply(x, copy.weight, bias, len(copy.weights), *copy.weights, *copy.biases))


class _HalfLinear(torch.autograd.Function):
    """x W^T + b for the weights and biases of several layers, in half precision; see linear_in_half()."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, count: int, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        rows = x.to(weight.dtype).reshape(-1, x.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            result = torch.mm(rows, weight.T) if bias is None else torch.addmm(bias, rows, weight.T)
        ctx.save_for_backward(rows, weight)
        ctx.sizes, ctx.dtype, ctx.shape = [len(each) for each in parameters[:count]], x.dtype, x.shape
        return result.view(*x.shape[:-1], -1).split(ctx.sizes, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_of_results: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        d, (of_x, _, _, _, *needed) = joined(gradients_of_results).flatten(0, -2), ctx.needs_input_grad
        count = len(ctx.sizes)
        gradients: list[Tensor | None] = [None] * len(needed)
        with torch.autocast(rows.device.type, enabled=False):
            dx = torch.mm(d, weight).view(ctx.shape).to(ctx.dtype) if of_x else None
            if any(needed[:count]):
                gradients[:count] = product_in_float32(d.T, rows).split(ctx.sizes)
            if any(needed[count:]):
                gradients[count:] = column_sums(d).split(ctx.sizes)
        pairs = zip(gradients, needed, strict=True)
        return dx, None, None, None, *(each if wanted else None for each, wanted in pairs)


def joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Return torch.cat(parts, -1), without a copy if the parts are adjacent in the rows of one tensor.

    The kernels of short attention return the gradients of queries, keys and values like this.

    >>> whole = torch.zeros(2, 6)
    >>> joined((whole[:, :2], whole[:, 2:])).data_ptr() == whole.data_ptr()
    True
    """
    first, place = parts[0], parts[0].storage_offset()
    for each in parts:
        same = each.shape[:-1] == first.shape[:-1] and each.stride() == first.stride()
        if not same or each.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(parts, -1)
        if each.dtype != first.dtype or each.storage_offset() != place or each.stride(-1) != 1:
            return torch.cat(parts, -1)
        place += each.shape[-1]
    width = place - first.storage_offset()
    if any(step < width for step in first.stride()[:-1]):  # rows overlap, such as in an expanded tensor
        return torch.cat(parts, -1)
    return first.as_strided((*first.shape[:-1], width), first.stride())


def in_aligned_rows(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return torch.cat(parts, -1) in `dtype`, with columns of zeros up to a multiple of ALIGNMENT.

    Each part is converted while it is copied. On CUDA, one kernel for each part does it.

    >>> in_aligned_rows([torch.ones(1, 2), torch.ones(1, 1).double()], torch.float32)
    tensor([[1., 1., 1., 0., 0., 0., 0., 0.]])
    """
    widths = [each.shape[-1] for each in parts]
    missing = -sum(widths) % ALIGNMENT
    rows = parts[0].new_empty(*parts[0].shape[:-1], sum(widths) + missing, dtype=dtype)
    widths[-1] += missing
    for place, part in zip(rows.flatten(0, -2).split(widths, -1), parts, strict=True):
        if by_kernel(part) and part.dim() in (2, 3) and part.stride(-1) == 1:
            from regard.kernels.training.row_copy import copy_rows

            copy_rows(part, place)
        else:
            place[:, : part.shape[-1]] = part.flatten(0, -2)
            place[:, part.shape[-1] :] = 0.0
    return rows


def product_in_float32(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices (or batches of matrices) in half precision as float32, not rounded.

    >>> half = torch.full((1, 2), 1 + 2**-7, dtype=torch.bfloat16)
    >>> product_in_float32(half, half.T).item() == 2 * (1 + 2**-7) ** 2
    True
    """
    if a.is_cuda and a.dtype.itemsize == 2:
        return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    return a.to(wide) @ b.to(wide)


def column_sums(x: Tensor) -> Tensor:
    """Return the sums over the rows of a matrix, or of each matrix of a batch, in float32 or float64.

    x: (..., N, C). The result has shape (..., C). In half precision on CUDA, a matrix product with ones
    computes it, which takes less than half the time of sum().

    >>> column_sums(torch.ones(3, 2)).tolist()
    [3.0, 3.0]
    """
    if x.is_cuda and x.dtype.itemsize == 2:
        ones = x.new_ones(ALIGNMENT, x.shape[-2])
        return product_in_float32(ones.expand(*x.shape[:-2], -1, -1), x)[..., 0, :]
    return x.sum(-2, dtype=torch.promote_types(x.dtype, torch.float32))


def trains_in_half(x: Tensor, layers: Sequence[nn.Module]) -> bool:
    """Whether linear_in_half() computes the linear layers: in training with autocast on CUDA."""
    if torch.compiler.is_compiling() or not (x.is_cuda and torch.is_grad_enabled() and autocast_on("cuda")):
        return False
    if in_transform() or not x.numel() or x.dtype == torch.float64:
        return False
    weights: list[Any] = [layer.weight for layer in layers]
    biased = {layer.bias is not None for layer in layers}
    same = len(biased) == 1 and all(weight.dtype == torch.float32 for weight in weights)
    return same and not any(size % ALIGNMENT for weight in weights for size in weight.shape)
