"""sdpa: PyTorch's fused attention kernels, for inner-product scores.

They are called as aten operators, not through F.scaled_dot_product_attention, for two reasons. First, that
function silently falls back to a path that allocates T x S (on CPU for dropout, different widths of key and
value, a bias with gradient, 3-D input, S = 0). Second, it does not return the log-sum-exp, from which the
weights are computed if a Look requests them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends import rows
from regard.backends.transforms import once_differentiable_node, reasons_of_transforms
from regard.call import Call, Forward
from regard.masks.mask import Mask, readable
from regard.positions import Bias
from regard.select import Soft

__all__ = [
    "FEW_KEYS",
    "KERNELS",
    "Kernel",
    "causal_alone",
    "device_capability",
    "empty_rows",
    "with_missing_nan",
]

AMPERE = (8, 0)
"""The lowest compute capability with FlashAttention 2, cuDNN attention and bfloat16."""

FEW_KEYS = 16
"""Number of elements of a SIMD vector in the CPU kernel, see Kernel.may_lose_nan()."""


Run = Callable[[Any, tuple[Tensor, Tensor, Tensor], Tensor | None, float, bool, float], tuple[Tensor, ...]]
"""(operator, (query, key, value), bias, dropout, is_causal, scale) -> the results of this ATen operator."""


def _cpu(
    aten: Any, tensors: tuple[Tensor, ...], bias: Tensor | None, dropout: float, is_causal: bool, scale: float
) -> Any:
    return aten(*tensors, 0.0, is_causal, attn_mask=bias, scale=scale)


def _flash(
    aten: Any, tensors: tuple[Tensor, ...], bias: Tensor | None, dropout: float, is_causal: bool, scale: float
) -> Any:
    return aten(*tensors, dropout, is_causal, False, scale=scale)


def _efficient(
    aten: Any, tensors: tuple[Tensor, ...], bias: Tensor | None, dropout: float, is_causal: bool, scale: float
) -> Any:
    return aten(*tensors, bias, True, dropout, is_causal, scale=scale)


@dataclass(frozen=True)
class Kernel:
    """One fused attention kernel of PyTorch: its operator and what the operator supports.

    operator: the name of the ATen operator.
    call: calls it with the arguments that it takes.
    """

    operator: str
    call: Run
    device: str
    dtypes: tuple[torch.dtype, ...]
    bias: bool  # supports a mask or bias
    dropout: bool
    grouped: bool  # supports fewer key heads than query heads
    equal_widths: bool  # needs the same width for query, key and value; narrower tensors are zero-padded
    multiple: int = 1  # widths are zero-padded to a multiple of this number
    widest: int | None = None  # the largest head width that it supports; None for no limit
    capability: tuple[int, int] = (0, 0)  # the lowest CUDA compute capability that it supports
    single_key_gradient: bool = True  # has a backward pass for T = S = 1
    padding: bool = False  # supports padding(), and does not read the keys behind it

    def reasons(self, call: Call) -> list[str]:
        """Return why this kernel cannot run the call; empty if it can."""
        reasons = _reasons_of_all(call) + reasons_of_transforms(vmap=self.device == "cpu")
        device, dtype = call.query.device, call.query.dtype
        if device.type != self.device:
            reasons.append(f"runs on {self.device}, but the call is on {device.type}")
        if dtype not in self.dtypes:
            reasons.append(f"supports {', '.join(map(_name, self.dtypes))}, not {_name(dtype)}")
        if device.type == self.device == "cuda":
            reasons += self._missing_on(device, dtype)
        if call.dropout and not self.dropout:
            reasons.append("has no dropout")
        if not self.bias and not (self._padded_alone(call) or causal_alone(call) or _unmasked(call)):
            also = ", or padding() with as many key heads as query heads" if self.padding else ""
            reasons.append(f"supports no bias, and no mask except causal() with start = 0 and T = S{also}")
        if self.bias and self.device == "cuda" and _loses_precision(call):
            reasons.append(f"would round the bias to {_name(call.query.dtype)}")
        if self.widest is not None:
            widest = max(call.query.shape[-1], call.value.shape[-1])
            if widest > self.widest:
                reasons.append(f"supports head widths up to {self.widest}, not {widest}")
        if not self.single_key_gradient and call.trains and call.sizes[2:] == (1, 1):
            reasons.append("has no backward pass for T = S = 1")
        return reasons

    def _missing_on(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        """Return why this CUDA device cannot run the kernel with this dtype; empty if it can."""
        reasons, own = [], device_capability(device)
        shown, needed = (".".join(map(str, each)) for each in (own, self.capability))
        if own < self.capability:
            reasons.append(f"needs compute capability {needed}, this device has {shown}")
        elif dtype == torch.bfloat16 and own < AMPERE:
            reasons.append(f"has no bfloat16 kernel for compute capability {shown}; use float16")
        return reasons

    def run(self, call: Call) -> Forward:
        """Compute attention with this kernel. A query that sees no key gets output 0 and lse -inf."""
        if self._padded_alone(call):
            return self._run_padded(call)
        is_causal = self.is_causal(call)
        if self.device == "cpu" and not is_causal and _has_rows(call) and rows.uses_rows(call):
            return Forward(*rows.attend_by_rows(call))
        # The only other part with which is_causal() is true is the padding.
        mask = Mask(lengths=call.mask.lengths) if is_causal else call.mask
        bias, seeing_BHT = call.added(call.query, call.whole, mask)
        if bias is not None and self.device == "cuda":
            bias = _strided(bias, call)
        scale = call.scale / call.temperature
        output, lse = self.attend(call.query, call.key, call.value, bias, call.dropout, is_causal, scale)
        if seeing_BHT is not None:
            output, lse = empty_rows(output, lse, seeing_BHT)
        return Forward(output, lse)

    def skips_padding(self, call: Call) -> bool:
        """Whether the kernel reads no key behind the padding of this call, so that it may be NaN there."""
        return self._padded_alone(call)

    def _padded_alone(self, call: Call) -> bool:
        """Whether the kernel itself applies the mask of this call, which is padding() alone."""
        if not self.padding or call.mask.parts != ("lengths",) or call.bias is not None:
            return False
        from regard.backends import varlen

        batch, heads, _, _ = call.sizes
        fits = 2 * batch * heads <= varlen.MAX_SEQUENCES
        return call.groups == 1 and fits and not torch.compiler.is_compiling()

    def _run_padded(self, call: Call) -> Forward:
        """Compute attention with padding(), see varlen.py."""
        from regard.backends import varlen

        assert call.mask.lengths is not None
        width = call.value.shape[3]
        tensors = self._padded(*map(last_dense, (call.query, call.key, call.value)))
        scale = call.scale / call.temperature
        output, lse = varlen.attend_padded(*tensors, call.mask.lengths, call.dropout, scale)
        return Forward(output[..., :width], lse)

    def is_causal(self, call: Call) -> bool:
        """Whether the kernel itself applies the causal part of the mask of this call."""
        return causal_alone(call) or (self.device == "cpu" and _causal_and_padding(call))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        dropout: float,
        is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Run the operator; return output (B, H, T, E) and lse (B, H, T).

        The tensors may have any strides, widths and numbers of heads that reasons() does not refuse. A double
        backward through the output raises a BackendError.
        """
        queries, width = query.shape[2], value.shape[3]
        if not self.grouped and key.shape[1] != query.shape[1]:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        tensors = self._padded(last_dense(query), last_dense(key), last_dense(value))
        # torch.compile traces the operators in torch.ops; those of the same name in torch are called faster.
        compiling = torch.compiler.is_compiling()
        aten = getattr(torch.ops.aten if compiling else torch, self.operator)
        output, lse, *_ = self.call(aten, tensors, bias, dropout, is_causal, scale)
        if not compiling and output.grad_fn is not None:
            once_differentiable_node(output)
        if output.shape[3] != width:
            output = output[..., :width]
        if lse.dim() == 4:
            lse = lse.squeeze(-1)
        if lse.shape[2] != queries:
            lse = lse[..., :queries]
        if not self.may_lose_nan(key.shape[2]) or (
            readable(lse) and int(torch.count_nonzero(lse)) == lse.numel()
        ):
            return output, lse
        return with_missing_nan(output, lse, query, key)

    def may_lose_nan(self, keys: int) -> bool:
        """Whether the kernel may return no NaN for a query whose scores are all NaN.

        With fewer than FEW_KEYS keys, the CPU kernel treats such a query as one that sees no key, and returns
        lse 0. So if no lse is 0, no NaN is missing.
        """
        return self.device == "cpu" and (torch.compiler.is_compiling() or keys < FEW_KEYS)

    def _padded(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Zero-pad the widths of query, key and value as the fields `equal_widths` and `multiple` require."""

        def up(width: int) -> int:
            return -(-width // self.multiple) * self.multiple

        inner, outer = query.shape[-1], value.shape[-1]
        if self.device == "cpu" and inner == outer:
            return query, key, value
        inner, outer = up(inner), up(outer)
        if self.equal_widths:
            inner = outer = max(inner, outer)
        return aligned(_pad(query, inner)), aligned(_pad(key, inner)), aligned(_pad(value, outer))


def last_dense(tensor: Tensor) -> Tensor:
    """Return the tensor with stride 1 in its last dimension, copied if necessary.

    The kernels assume this stride and do not check it.
    """
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, copied if its rows are not aligned in memory. CUDA kernels load 16 bytes at a time.

    A tensor whose width is no multiple of 16 bytes is returned as it is: kernels that support such a width
    do not need aligned rows.
    """
    if not tensor.is_cuda or tensor.shape[-1] * tensor.element_size() % 16 or _rows_are_aligned(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _rows_are_aligned(tensor: Tensor) -> bool:
    """Whether every row of the tensor begins at a multiple of 16 bytes."""
    step = 16 // tensor.element_size()
    sizes, strides = tensor.shape[:-1], tensor.stride()[:-1]
    rows = all(size == 1 or stride % step == 0 for size, stride in zip(sizes, strides, strict=True))
    return rows and tensor.storage_offset() % step == 0


def device_capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device, such as (8, 0) for an A100.

    If torch has no CUDA or no such device, the result is (9, 0), which every kernel supports.
    """
    try:
        return torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError):  # torch has no CUDA, or no such device
        return 9, 0


# Mark the function so that torch.compile calls it while tracing; see _load() in fused.py.
vars(device_capability)["_dynamo_marked_constant"] = True


def _reasons_of_all(call: Call) -> list[str]:
    """Return the reasons that rule out all sdpa kernels for this call; empty if there is no such reason."""
    reasons = []
    if call.combine != "inner":
        reasons.append("computes inner products, but this score is additive")
    if call.softcap is not None:
        reasons.append("has no soft cap of the scores")
    if not isinstance(call.select, Soft):
        reasons.append(f"computes Soft only, not {type(call.select).__name__}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if call.bias is None:
        return reasons
    if torch.is_grad_enabled() and any(t.requires_grad for t in call.bias_tensors):
        reasons.append("computes no gradient of a bias")
    if isinstance(call.bias, Bias):
        name = type(call.bias).__name__
        if call.bias.reads:
            reasons.append(f"does not support position schemes that add to the output, as {name} does")
        elif call.trains and call.bias.asks_query and not reasons:
            reasons.append(f"computes no gradient through the bias of {name}, which depends on the query")
    return reasons


def _unmasked(call: Call) -> bool:
    return call.bias is None and not call.mask.parts


def causal_alone(call: Call) -> bool:
    """Whether a kernel can run the call with is_causal=True and without a bias tensor.

    This requires a causal mask without other parts, no bias, start = 0 and T = S. With is_causal=True, query
    i attends to keys 0 to i (aligned to the top left).
    """
    if call.mask.parts != ("causal",) or call.bias is not None or call.start:
        return False
    return call.query.shape[2] == call.key.shape[2]


def _causal_and_padding(call: Call) -> bool:
    """Whether the CPU kernel can apply the causal part of the mask itself (is_causal=True).

    This requires a causal mask, no bias and start = 0. The mask may also have lengths (padding), but no other
    parts. The padding is passed to the kernel as a bias tensor.
    """
    return call.mask.causal and call.mask.only("causal", "lengths") and call.bias is None and call.start == 0


def _loses_precision(call: Call) -> bool:
    """Whether the bias would lose precision, because it must be rounded to half precision.

    The CUDA kernels require a bias in the dtype of the query. The bias of a position scheme is computed in
    float32, so rounding changes it. A bias tensor is divided by the temperature; the result is exact only if
    the temperature is a power of two.
    """
    if call.bias is None or call.query.dtype not in _HALF:
        return False
    return isinstance(call.bias, Bias) or math.frexp(call.temperature)[0] != 0.5


def _has_rows(call: Call) -> bool:
    """Whether mask and bias must be computed for each query and key, as a tensor with T rows."""
    return not call.mask.only("lengths") or isinstance(call.bias, Bias)


def _strided(bias: Tensor, call: Call) -> Tensor:
    """Expand the bias to (B, H, T, S). Its row stride is a multiple of 16, as the CUDA kernels require."""
    batch, heads, queries, keys = call.sizes
    return _pad(bias, -(-keys // 16) * 16)[..., :keys].expand(batch, heads, queries, keys)


def with_missing_nan(output: Tensor, lse: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and lse of a kernel, with NaN for the queries whose scores are all NaN."""
    no_key_BK1 = key.isnan().any(-1).all(-1, keepdim=True)
    if key.shape[1] != query.shape[1]:
        no_key_BK1 = no_key_BK1.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    missing = torch.where(query.isnan().any(-1) | no_key_BK1, torch.nan, 0.0)
    return output + missing.unsqueeze(-1).to(output.dtype), lse + missing.to(lse.dtype)


def empty_rows(output: Tensor, lse: Tensor, seeing_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """Set output to 0 and lse to -inf for the queries that see no key.

    seeing_BHT: a bool tensor that broadcasts to (B, H, T), True if the query sees at least one key.
    """
    output = torch.where(seeing_BHT.unsqueeze(-1), output, 0.0)
    return output, torch.where(seeing_BHT, lse, -torch.inf)


def _pad(tensor: Tensor, width: int) -> Tensor:
    return tensor if tensor.shape[-1] == width else functional.pad(tensor, (0, width - tensor.shape[-1]))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_HALF = (torch.bfloat16, torch.float16)

KERNELS = {
    "sdpa-cudnn": Kernel(
        "_scaled_dot_product_cudnn_attention",
        _efficient,
        "cuda",
        _HALF,
        bias=True,
        dropout=False,
        grouped=True,
        equal_widths=True,
        multiple=8,
        widest=128,
        capability=AMPERE,
        single_key_gradient=False,
    ),
    "sdpa-flash": Kernel(
        "_scaled_dot_product_flash_attention",
        _flash,
        "cuda",
        _HALF,
        bias=False,
        dropout=True,
        grouped=True,
        equal_widths=True,
        multiple=8,
        widest=256,
        capability=AMPERE,
        padding=True,
    ),
    "sdpa-efficient": Kernel(
        "_scaled_dot_product_efficient_attention",
        _efficient,
        "cuda",
        (*_HALF, torch.float32),
        bias=True,
        dropout=True,
        grouped=False,
        equal_widths=False,
        multiple=8,
    ),
    "sdpa-cpu": Kernel(
        "_scaled_dot_product_flash_attention_for_cpu",
        _cpu,
        "cpu",
        (torch.float32, torch.float64, *_HALF),
        bias=True,
        dropout=False,
        grouped=True,
        equal_widths=True,
    ),
}
