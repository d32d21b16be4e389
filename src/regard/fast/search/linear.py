"""linear(): the linear layers of a decoding step, with packed or int8 weights on a CPU.

A matrix product with few rows first copies the weights to another layout, which takes longer than the
product. oneDNN can do it once: with 5 rows and 256 x 8000 weights, the product is then twice as fast, and
packing takes as long as 5 of these products. Packed weights and weights rounded to int8 are kept for later
searches, see kept().
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Linear", "int8_available", "kept", "linear"]

Linear = Callable[[Tensor], Tensor]
"""A function from inputs (rows, M) to outputs (rows, N)."""

FEWEST_PRODUCTS = 2**19
"""Weights are packed if the number of rows times the number of weights is at least this number."""

MANY_WEIGHTS = 2**20
"""The smallest number of weights for which oneDNN is faster than MKL with one row. They are not packed."""

FEWEST_INT8_WEIGHTS = 2**15
"""The smallest number of weights that are rounded to int8."""


def linear(
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    int8: bool = False,
    relu: bool = False,
    owner: Tensor | None = None,
) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias), for x (rows, M).

    rows: the expected number of rows of x; others are possible.
    int8: compute with int8 weights and inputs, if the weights are float32 on a CPU; see int8_linear().
    relu: also compute relu of the result.
    owner: if `weight` is computed from parameters for this search, one of these parameters; see kept().

    Later changes of the weights may have no effect.
    """

    def plain(x: Tensor) -> Tensor:
        result = functional.linear(x, weight, bias)
        return result.relu_() if relu else result

    if weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_grad_enabled():
        return plain
    owner = weight if owner is None else owner
    if int8 and weight.numel() >= FEWEST_INT8_WEIGHTS:
        return kept(owner, ("int8", relu), (weight, bias), functools.partial(int8_linear, relu=relu))
    fewest = MANY_WEIGHTS if rows < 2 else FEWEST_PRODUCTS
    if rows * weight.numel() < fewest or not _has_onednn():
        return plain
    if rows < 2:
        return _onednn_linear(weight.detach(), bias, relu)

    def pack(weight: Tensor, bias: Tensor | None) -> Linear:
        return _onednn_linear(torch.ops.mkldnn._reorder_linear_weight(weight, rows), bias, relu)

    return kept(owner, ("packed", relu), (weight, bias), pack)


def _onednn_linear(weight: Tensor, bias: Tensor | None, relu: bool) -> Linear:
    """Return a function that calls oneDNN. weight: (N, M), packed or not."""
    product, after = torch.ops.mkldnn._linear_pointwise, "relu" if relu else "none"

    def compute(x: Tensor) -> Tensor:
        result: Tensor = product(x, weight, bias, after, [], "")
        return result

    return compute


class Kept(NamedTuple):
    """A value, and copies of the tensors that it was computed from."""

    sources: tuple[Tensor | None, ...]
    value: Any


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""For each owner, a dict of its Kept values."""


def kept(
    owner: Tensor, kind: Hashable, sources: tuple[Tensor | None, ...], compute: Callable[..., Any]
) -> Any:
    """Return compute(*sources), or what an earlier call returned, if all elements of `sources` are the same.

    Packing or rounding weights takes longer than decoding a sentence, comparing them takes less. Version
    counters of PyTorch are not enough, because changes of `parameter.data` do not count.

    owner: the value is freed with this tensor.
    kind: only one value of each kind is kept for an owner.
    """
    values: dict[Hashable, Kept] = _kept.setdefault(owner, {})
    found = values.get(kind)
    if found is not None and all(map(_equal, found.sources, sources)):
        return found.value
    copies = tuple(None if each is None else each.detach().clone() for each in sources)
    values[kind] = found = Kept(copies, compute(*copies))
    return found.value


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


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


def _has_onednn() -> bool:
    """Return whether PyTorch can use oneDNN on this processor, and the user did not disable it."""
    return bool(torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled() and _runs_onednn())


@functools.cache
def _runs_onednn() -> bool:
    weight = torch.eye(2)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        torch.ops.mkldnn._linear_pointwise(weight, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True
