"""linear(): the linear layers of a decoding step, with packed or int8 weights on a CPU.

A matrix product with few rows first copies the weights to another layout, which takes longer than the
product. oneDNN can do it once for a search: with 5 rows and 256 x 8000 weights, the product is then twice as
fast, and packing takes as long as 5 of these products. Packed weights are not kept after the search, so that
the next one reads the weights again.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Linear", "int8_available", "linear"]

Linear = Callable[[Tensor], Tensor]
"""A function from inputs (rows, M) to outputs (rows, N)."""

FEWEST_PRODUCTS = 2**19
"""Weights are packed if the number of rows times the number of weights is at least this number."""

MANY_WEIGHTS = 2**20
"""The smallest number of weights for which oneDNN is faster than MKL with one row. They are not packed."""

FEWEST_INT8_WEIGHTS = 2**15
"""The smallest number of weights that are rounded to int8."""


def linear(weight: Tensor, bias: Tensor | None, rows: int, int8: bool = False, relu: bool = False) -> Linear:
    """Return a function that computes functional.linear(x, weight, bias), for x (rows, M).

    rows: the expected number of rows of x; others are possible.
    int8: compute with int8 weights and inputs, if the weights are float32 on a CPU; see int8_linear().
    relu: also compute relu of the result.

    Later changes of the weights may have no effect.
    """

    def plain(x: Tensor) -> Tensor:
        result = functional.linear(x, weight, bias)
        return result.relu_() if relu else result

    if weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_grad_enabled():
        return plain
    if int8 and weight.numel() >= FEWEST_INT8_WEIGHTS:
        return int8_linear(weight, bias, relu)
    fewest = MANY_WEIGHTS if rows < 2 else FEWEST_PRODUCTS
    if rows * weight.numel() < fewest or not _has_onednn():
        return plain
    packed = weight.detach()
    if rows > 1:
        packed = torch.ops.mkldnn._reorder_linear_weight(packed, rows)
    product, after = torch.ops.mkldnn._linear_pointwise, "relu" if relu else "none"

    def compute(x: Tensor) -> Tensor:
        result: Tensor = product(x, packed, bias, after, [], "")
        return result

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
