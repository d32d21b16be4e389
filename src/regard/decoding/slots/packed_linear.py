"""Linear layers for the few rows of a decoding step on a CPU, with packed weights.

A matrix product with few rows first copies the weights to another layout, which takes longer than the
product. oneDNN can do it once. With 5 rows and 256 x 8000 weights on a core, it was about 6 times faster.
The packed weights of a model are kept for later searches, because packing takes as long as a few steps.

With int8 weights (dynamic quantization), a product with 5 rows was 1.8 times faster, with 80 rows 2.4 times.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.models.base import all_modules

__all__ = ["Linear", "int8_available", "int8_linear", "kept_products", "packed_linear"]

T = TypeVar("T")

Linear = Callable[[Tensor], Tensor]
"""A function from inputs (..., M) to outputs (..., N)."""

FEWEST_WEIGHTS = 2**15
"""The smallest number of weights for which packing pays off."""

SAMPLES = 256
"""Number of elements of each weight that are compared with those of the last search."""


class Kept(NamedTuple):
    """The matrix products of a model.

    key: the options, and the address, version and dtype of each weight.
    views: some elements of each weight, as views.
    samples: a copy of these elements.
    products: the result of kept_products().
    """

    key: list[Any]
    views: list[Tensor]
    samples: Tensor
    products: Any


_kept: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()
"""The last matrix products of each model."""


def kept_products(model: nn.Module, rows: int, build: Callable[[], T], kind: object = None) -> T:
    """Return build(), the matrix products of a decoder, or its last result if the weights are the same.

    rows: the expected number of rows of the products; see packed_linear().
    kind: a result is not used again for another kind of products.

    Results are kept only for a model on a CPU, where packed_linear() copies weights.
    """
    key: list[Any] = [rows < 2, getattr(model, "int8_steps", False), kind]
    weights = list[Tensor]()
    for module in all_modules(model):
        for weight in module._parameters.values():
            if weight is None:
                continue
            if weight.device.type != "cpu" or weight.is_inference():
                return build()
            weights.append(weight)
            key += weight.data_ptr(), weight._version, weight.dtype
    if torch.is_grad_enabled() or not weights:
        return build()
    # _version counts the changes of a tensor in place, but not those of weight.data. Code that changes
    # weight.data, such as a moving average of weights, usually changes all elements. So some are compared.
    kept = _kept.get(model)
    if kept is None or kept.key != key or not torch.equal(torch.cat(kept.views), kept.samples):
        views = [_samples(each) for each in weights]
        kept = _kept[model] = Kept(key, views, torch.cat(views), build())
    result: T = kept.products
    return result


def _samples(weight: Tensor) -> Tensor:
    """Return a view (n,) of about SAMPLES elements of a weight, at equal distances."""
    view = weight.detach()
    if view.is_contiguous():
        return view.view(-1)[:: max(view.numel() // SAMPLES, 1)]
    while view.dim() > 1:
        view = view[:, 0]
    return view


def packed_linear(
    weight: Tensor, bias: Tensor | None, rows: int, int8: bool = False, relu: bool = False
) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias), for x (..., M).

    rows: the expected number of rows of x; others are possible.
    int8: compute with int8 weights and inputs on a CPU; see int8_linear().
    relu: also compute relu of the result.

    On a CPU in float32, the weights are copied: packed, or transposed for one row. Later changes of the
    weights then have no effect.
    """

    def plain(x: Tensor) -> Tensor:
        result = functional.linear(x, weight, bias)
        return result.relu_() if relu else result

    suits = weight.device.type == "cpu" and weight.dtype == torch.float32 and not torch.is_grad_enabled()
    if suits and int8 and weight.numel() >= FEWEST_WEIGHTS:
        return int8_linear(weight, bias, relu)
    wide = weight.dim() == 2 and weight.shape[0] >= weight.shape[1]
    if suits and rows < 2 and weight.numel() >= FEWEST_WEIGHTS and wide:
        return _row_linear(weight.detach(), bias, relu)
    if not suits or rows < 2 or weight.numel() < FEWEST_WEIGHTS or not _available():
        return plain
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        compute = torch.ops.mkldnn._linear_pointwise
        after = "relu" if relu else "none"
        compute(weight.new_zeros(rows, weight.shape[1]), packed, bias, after, [], "")
    except (RuntimeError, NotImplementedError):  # another version of PyTorch or another processor
        return plain

    def fast(x: Tensor) -> Tensor:
        if x.dim() == 2:
            result: Tensor = compute(x, packed, bias, after, [], "")
            return result
        return fast(x.flatten(0, -2)).view(*x.shape[:-1], -1)

    return fast


def _row_linear(weight: Tensor, bias: Tensor | None, relu: bool) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias) with transposed weights.

    For one row x, this is up to twice as fast for weights (N, M) with N >= M: MKL reads the weights in order.
    With N < M, it is slower.
    """
    turned = weight.T.contiguous()

    def compute(x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        result = torch.mm(rows, turned) if bias is None else torch.addmm(bias, rows, turned)
        return (result.relu_() if relu else result).view(*x.shape[:-1], -1)

    return compute


def int8_linear(weight: Tensor, bias: Tensor | None, relu: bool = False) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias) approximately, for x (..., M).

    Each row of the weights (N, M) is rounded to multiples of its largest absolute value / 127. All inputs of
    a call are rounded to 128 values between their minimum and maximum (dynamic quantization).
    """
    scale_N = weight.detach().abs().amax(1).clamp(min=1e-12).double() / 127
    zero_N = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # PyTorch 2.13 warns that quantized tensors will be removed; see int8_available().
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch.quantize_per_channel(weight.detach(), scale_N, zero_N, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())
    operators = torch.ops.quantized
    product = operators.linear_relu_dynamic if relu else operators.linear_dynamic

    def compute(x: Tensor) -> Tensor:
        result: Tensor = product(x, packed, True)
        return result

    return compute


def int8_available() -> bool:
    """Return whether this version of PyTorch has matrix products in int8 for this processor."""
    weight = torch.eye(2)
    try:
        return bool(int8_linear(weight, None)(weight).allclose(weight, atol=0.02))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def _available() -> bool:
    """Return whether this build of PyTorch has the operators of oneDNN, and the user did not disable them."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    enabled = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return enabled and all(hasattr(torch.ops.mkldnn, each) for each in names)
