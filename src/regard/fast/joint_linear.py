"""Several linear layers of one input, computed by one matrix product in training in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on, in_transform
from regard.fast.hooks import are_plain_linear, is_plain_linear

__all__ = [
    "column_sums",
    "joint_linear",
    "linear_in_half",
    "linear_without_bias",
    "product_in_float32",
    "trains_in_half",
]

ALIGNMENT = 8
"""Under autocast, one product is used for sizes that are multiples of this number, as tensor cores need."""


def joint_linear(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """Return the outputs of the layers for the same input x, each as layer(x) returns it, up to rounding.

    >>> layers, x = [nn.Linear(3, 4), nn.Linear(3, 2)], torch.randn(5, 3)
    >>> torch.allclose(joint_linear(x, layers)[1], layers[1](x), atol=1e-6)
    True
    """
    if are_plain_linear(layers):
        parameters: list[dict[str, Any]] = [layer._parameters for layer in layers]
        if trains_in_half(x, parameters):
            return linear_in_half(x, parameters, torch.get_autocast_dtype(x.device.type))
    return [each(x) for each in layers]


def linear_without_bias(x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the output of a linear layer without its bias, and the bias; or the whole output, and None.

    The caller adds the bias in a kernel that also computes its gradient. The whole output is returned if the
    layer is not computed by linear_in_half().
    """
    if is_plain_linear(layer) and trains_in_half(x, [layer._parameters]):
        weight: Any = layer.weight
        bias: Any = layer.bias
        dtype = torch.get_autocast_dtype(x.device.type)
        return linear_in_half(x, [{"weight": weight, "bias": None}], dtype)[0], bias
    return joint_linear(x, [layer])[0], None


def linear_in_half(x: Tensor, parameters: Sequence[dict[str, Any]], dtype: torch.dtype) -> list[Tensor]:
    """Compute several linear layers as under autocast, by one product in half precision.

    parameters: "weight" (O, I) and "bias" (O,) or None of each layer, in float32.

    Differs from autocast: the gradients of weights and biases are not rounded to half precision. One kernel
    converts all weights and biases.
    """
    weights, biases = ([each[name] for each in parameters] for name in ("weight", "bias"))
    joint = _HalfLinear.apply(x, dtype, len(weights), *weights, *biases)
    return [joint] if len(weights) == 1 else list(joint.split([len(weight) for weight in weights], -1))


class _HalfLinear(torch.autograd.Function):
    """x W^T + b for the weights and biases of several layers, in half precision; see linear_in_half()."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, count: int, *tensors: Tensor | None) -> Tensor:
        weights, biases = (
            [each for each in some if each is not None] for some in (tensors[:count], tensors[count:])
        )
        sizes = [len(weight) for weight in weights]
        weight, bias = _joint_copies(weights, biases, dtype)
        rows = x.to(dtype).reshape(-1, x.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            result = torch.addmm(bias, rows, weight.T) if biases else torch.mm(rows, weight.T)
        ctx.save_for_backward(rows, weight)
        ctx.sizes, ctx.dtype, ctx.shape, ctx.biased = sizes, x.dtype, x.shape, bool(biases)
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        d, needed = dresult.reshape(-1, len(weight)), ctx.needs_input_grad
        count = len(ctx.sizes)
        dweights: Sequence[Tensor | None] = [None] * count
        dbiases: Sequence[Tensor | None] = [None] * count
        with torch.autocast(rows.device.type, enabled=False):
            dx = torch.mm(d, weight).view(ctx.shape).to(ctx.dtype) if needed[0] else None
            if any(needed[3 : 3 + count]):
                dweights = product_in_float32(d.T, rows).split(ctx.sizes)
            if ctx.biased and any(needed[3 + count :]):
                dbiases = column_sums(d).split(ctx.sizes)
        pairs = zip((*dweights, *dbiases), needed[3:], strict=True)
        return dx, None, None, *(gradient if wanted else None for gradient, wanted in pairs)


def _joint_copies(weights: list[Tensor], biases: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights and the biases of all layers, one after another, in half precision."""
    sizes, first = [len(each) for each in weights], weights[0]
    weight = first.new_empty(sum(sizes), first.shape[1], dtype=dtype)
    bias = first.new_empty(sum(sizes) if biases else 0, dtype=dtype)
    places = [*weight.split(sizes), *(bias.split(sizes) if biases else ())]
    torch._foreach_copy_(places, [*weights, *biases])
    return weight, bias


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


def trains_in_half(x: Tensor, parameters: Sequence[dict[str, Any]]) -> bool:
    """Whether linear_in_half() computes the layers: in training with autocast on CUDA."""
    if torch.compiler.is_compiling() or not (x.is_cuda and torch.is_grad_enabled() and autocast_on("cuda")):
        return False
    if in_transform() or not x.numel() or x.dtype == torch.float64:
        return False
    biased = [each["bias"] is not None for each in parameters]
    weights = [each["weight"] for each in parameters]
    same = len(set(biased)) == 1 and all(weight.dtype == torch.float32 for weight in weights)
    return same and not any(size % ALIGNMENT for weight in weights for size in weight.shape)
