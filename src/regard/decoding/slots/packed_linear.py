"""Linear layers for the few rows of a decoding step on a CPU, with packed weights.

A matrix product with few rows first copies the weights to another layout, which takes longer than the
product. oneDNN can do it once. With 5 rows and 256 x 8000 weights on a core, it was about 6 times faster.
The packed weights of a model are kept for later searches, because packing takes as long as a few steps. They
are used again only if all elements of the weights are still the same.

With int8 weights (dynamic quantization), a product with 5 rows was 1.8 times faster, with 80 rows 2.4 times.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Linear", "PackedWeights", "int8_available", "int8_linear", "packed_linear"]

T = TypeVar("T")

Linear = Callable[[Tensor], Tensor]
"""A function from inputs (..., M) to outputs (..., N)."""

FEWEST_WEIGHTS = 2**15
"""The smallest number of weights for which packing pays off."""


class Kept(NamedTuple):
    """A result that is computed from tensors.

    options: what else it depends on.
    tensors: copies of the tensors.
    result: the result, which was computed from the copies.
    """

    options: tuple[Any, ...]
    tensors: list[Tensor | None]
    result: Any


_kept: WeakKeyDictionary[nn.Module, dict[int, Kept]] = WeakKeyDictionary()
"""The results of the last search of each model, in the order in which its decoder requests them."""


class PackedWeights:
    """The packed weights of the decoder of a model, for one search. They are kept for the next search.

    rows: the expected number of rows of the products; see packed_linear().
    int8: whether the products are computed with int8 weights; see int8_linear().

    The version counter of a tensor does not count changes of weight.data or of a NumPy array that shares its
    memory. So each search compares all elements of the weights with copies of those that were packed. With 9
    million weights, this took 4 ms, and packing them 20 ms.
    """

    def __init__(self, model: nn.Module, rows: int, int8: bool):
        self.rows, self.int8 = rows, int8
        self._results = _kept.setdefault(model, {})
        self.start()

    def start(self) -> None:
        """Begin again with the first product of the decoder."""
        self._number = 0

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        relu: bool = False,
        *,
        rows: int | None = None,
        int8: bool | None = None,
    ) -> Linear:
        """Return packed_linear() of these weights. rows, int8: default: those of the search."""
        rows = self.rows if rows is None else rows
        int8 = self.int8 if int8 is None else int8
        if not _copies(weight, rows, int8):
            return packed_linear(weight, bias, rows, int8, relu)

        def build(weight: Tensor, bias: Tensor | None) -> Linear:
            return packed_linear(weight, bias, rows, int8, relu)

        return self.keep((weight, bias), build, rows < 2, int8, relu)

    def keep(self, tensors: Sequence[Tensor | None], build: Callable[..., T], *options: Any) -> T:
        """Return build(*tensors), or the result of the last search if tensors and options are the same.

        The result must depend on nothing else.
        """
        number, self._number = self._number, self._number + 1
        kept = self._results.get(number)
        if kept is None or kept.options != options or not all(map(_equal, kept.tensors, tensors)):
            copies = [None if each is None else each.detach().clone() for each in tensors]
            kept = self._results[number] = Kept(options, copies, build(*copies))
        result: T = kept.result
        return result


def _equal(kept: Tensor | None, tensor: Tensor | None) -> bool:
    """Whether two tensors have the same dtype and the same elements, or are both None."""
    if kept is None or tensor is None:
        return kept is tensor
    return kept.dtype == tensor.dtype and torch.equal(kept, tensor)


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

    if not _copies(weight, rows, int8):
        return plain
    if int8:
        return int8_linear(weight, bias, relu)
    if rows < 2:
        return _row_linear(weight.detach(), bias, relu)
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


def _copies(weight: Tensor, rows: int, int8: bool) -> bool:
    """Whether packed_linear() copies these weights."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_grad_enabled():
        return False
    if weight.numel() < FEWEST_WEIGHTS:
        return False
    return int8 or (_available() if rows >= 2 else weight.dim() == 2 and weight.shape[0] >= weight.shape[1])


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
