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

FEWEST_WEIGHTS = 2**15
"""The smallest number of weights that are packed."""


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
    if weight.numel() < FEWEST_WEIGHTS:
        return plain
    if int8:
        return int8_linear(weight, bias, relu)
    if rows < 2 or not _packs():
        return plain
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
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


def _packs() -> bool:
    """Return whether PyTorch can pack weights for this processor, and the user did not disable oneDNN."""
    return bool(torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled() and _can_pack())


@functools.cache
def _can_pack() -> bool:
    weight = torch.eye(2)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        torch.ops.mkldnn._linear_pointwise(weight, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True
