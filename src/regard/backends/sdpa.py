"""sdpa: PyTorch's fused kernels for everything that reduces to an inner product, each with its own reasons.

They are called as aten operators, never through F.scaled_dot_product_attention, which falls back to a
materialising path without a word (on CPU: dropout, a value width unlike the key's, a bias with gradient,
3-D input, S = 0) and hides the log-sum-exp that looking needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.transforms import once_differentiable, reasons_of_transforms
from regard.call import Call, Forward
from regard.positions import Bias
from regard.select import Soft

__all__ = ["KERNELS", "Kernel"]

Operator = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool, float], tuple[Tensor, Tensor]]
"""(query, key, value, bias, dropout, is_causal, scale) -> (output, lse)"""


AMPERE = (8, 0)
"""The compute capability from which on CUDA devices have FlashAttention 2, cuDNN attention and bfloat16."""


@dataclass(frozen=True)
class Kernel:
    """One fused kernel of PyTorch: where it runs, what it takes, and how it is called."""

    operator: Operator
    device: str
    dtypes: tuple[torch.dtype, ...]
    bias: bool  # takes a mask or bias
    dropout: bool
    grouped: bool  # takes fewer key heads than query heads
    equal_widths: bool  # query, key and value must be equally wide: narrower ones are padded with zeros
    multiple: int = 1  # widths are padded to a multiple of this
    widest: int | None = None
    capability: tuple[int, int] = (0, 0)  # the lowest compute capability of a CUDA device that has it

    def reasons(self, call: Call) -> list[str]:
        """Why this kernel cannot run the call."""
        found = _reasons_of_all(call) + reasons_of_transforms(vmap=self.device == "cpu")
        if call.query.device.type != self.device:
            found.append(f"runs on {self.device}, the call is on {call.query.device.type}")
        if call.query.dtype not in self.dtypes:
            found.append(f"takes {', '.join(map(_name, self.dtypes))}, not {_name(call.query.dtype)}")
        found += self._missing_on(call.query.device, call.query.dtype)
        if call.dropout and not self.dropout:
            found.append("has no dropout")
        if not self.bias and (call.bias is not None or not (_causal_alone(call) or not call.mask.parts)):
            found.append("takes no mask or bias but causal from position 0 with T = S")
        if self.bias and self.device == "cuda" and _loses_precision(call):
            found.append(f"would round the bias to {_name(call.query.dtype)}")
        widest = max(call.query.shape[-1], call.value.shape[-1])
        if self.widest is not None and widest > self.widest:
            found.append(f"takes heads up to {self.widest} wide, not {widest}")
        return found

    def _missing_on(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        """What the device of the call lacks: the kernel, or the dtype."""
        if device.type != "cuda" or self.device != "cuda":
            return []
        found, own = [], device_capability(device)
        shown, needed = (".".join(map(str, each)) for each in (own, self.capability))
        if own < self.capability:
            found.append(f"needs compute capability {needed}, this device has {shown}")
        elif dtype == torch.bfloat16 and own < AMPERE:
            found.append(f"has no bfloat16 kernel for compute capability {shown}; it takes float16")
        return found

    def run(self, call: Call) -> Forward:
        """Run the kernel, and mend what it leaves wrong in rows that see nothing."""
        queries, width = call.query.shape[2], call.value.shape[3]
        query, key, value = call.query, call.key, call.value
        if not self.grouped:
            key, value = call.spread(key), call.spread(value)
        if call.trains:
            query, key, value = once_differentiable(query, key, value)
        query, key, value = self._padded(*map(_last_dense, (query, key, value)))
        is_causal = _causal_alone(call) or (self.device == "cpu" and _causal_and_padding(call))
        bias, seeing_BHT = _bias(call, without_causal=is_causal)
        if bias is not None and self.device == "cuda":
            bias = _strided(bias, call)
        scale = call.scale / call.temperature
        output, lse = self.operator(query, key, value, bias, call.dropout, is_causal, scale)
        output, lse = output[..., :width], lse[..., :queries]
        if self.device == "cpu" and (torch.compiler.is_compiling() or key.shape[2] < _VECTOR):
            lost = _lost_nan(call)
            output, lse = output + lost.unsqueeze(-1).to(output.dtype), lse + lost.to(lse.dtype)
        if seeing_BHT is not None:
            output = torch.where(seeing_BHT.unsqueeze(-1), output, 0.0)
            lse = torch.where(seeing_BHT, lse, -torch.inf)
        return Forward(output, lse)

    def _padded(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def up(width: int) -> int:
            return -(-width // self.multiple) * self.multiple

        inner, outer = up(query.shape[-1]), up(value.shape[-1])
        if self.equal_widths:
            inner = outer = max(inner, outer)
        return _pad(query, inner), _pad(key, inner), _pad(value, outer)


def device_capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a CUDA device, (8, 0) for an A100; without CUDA, that of a recent one."""
    try:
        return torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError):  # torch has no CUDA, or no such device
        return 9, 0


# torch.compile evaluates it while tracing, as by assume_constant_result, which would import the compiler.
vars(device_capability)["_dynamo_marked_constant"] = True


def _reasons_of_all(call: Call) -> list[str]:
    found = []
    if call.combine != "inner":
        found.append("computes inner products, and this score combines additively")
    if not isinstance(call.select, Soft):
        found.append(f"computes a softmax, and {type(call.select).__name__} is another selection")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        found.append("a size is 0")
    if torch.is_grad_enabled() and any(t.requires_grad for t in call.bias_tensors):
        found.append("gives no gradient to a bias")
    if isinstance(call.bias, Bias):
        name = type(call.bias).__name__
        if call.bias.reads:
            found.append(f"cannot add to what is read, as {name} does")
        elif call.trains and call.bias.asks_query and not found:
            found.append(f"gives no gradient through the bias of {name}, which depends on the query")
    return found


def _causal_alone(call: Call) -> bool:
    """Whether the kernel's own causal mask, aligned to the top left, is exactly the call's."""
    _, _, queries, keys = call.sizes
    return call.mask.parts == ("causal",) and call.bias is None and call.start == 0 and queries == keys


def _causal_and_padding(call: Call) -> bool:
    return call.mask.causal and call.mask.only("causal", "lengths") and call.bias is None and call.start == 0


def _loses_precision(call: Call) -> bool:
    """Whether a bias computed in float32 would be rounded to the query's dtype, as kernels on CUDA require:
    one from a position scheme, or one divided by a temperature other than a power of two."""
    if call.bias is None or call.query.dtype not in _HALF:
        return False
    return isinstance(call.bias, Bias) or math.frexp(call.temperature)[0] != 0.5


def _bias(call: Call, without_causal: bool) -> tuple[Tensor | None, Tensor | None]:
    """Mask and bias as one tensor to add, of as few sizes as will do, and which rows see anything."""
    mask = replace(call.mask, causal=False) if without_causal else call.mask
    if not mask.parts and call.bias is None:
        return None, None
    tile = call.whole
    if call.bias is None and mask.only("lengths"):
        tile = tile._replace(rows_T=tile.rows_T[:1])
    visible = mask.tile(tile)
    dtype = call.query.dtype
    if call.query.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    added = torch.zeros((), dtype=dtype, device=call.query.device)
    bias = call.bias_tile(call.query, tile)
    if bias is not None:
        visible = visible & (bias != -torch.inf)
        wide = bias.to(torch.promote_types(bias.dtype, torch.float32))
        added = torch.where(visible, wide / call.temperature, 0.0).to(dtype)
    # A row of -inf alone comes back as NaN, or with lse 0, depending on the kernel: it is let see everything
    # here, and its output and gradient are cut off afterwards.
    seeing = visible.any(-1)
    return torch.where(~visible & seeing.unsqueeze(-1), -torch.inf, added).to(dtype), seeing


def _strided(bias: Tensor, call: Call) -> Tensor:
    """The bias in its full size with rows 16 elements apart, as the kernels on CUDA load it."""
    batch, heads, queries, keys = call.sizes
    return _pad(bias, -(-keys // 16) * 16)[..., :keys].expand(batch, heads, queries, keys)


def _last_dense(tensor: Tensor) -> Tensor:
    """The kernels take the numbers of a vector to lie side by side, and read others without a word."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


_VECTOR = 16


def _lost_nan(call: Call) -> Tensor:
    """NaN for each row whose scores are all NaN, 0 for the others, (B, H, T). With fewer keys than fill one
    of its vectors, the CPU kernel takes such a row for one that sees nothing."""
    no_key_BH1 = call.spread(call.key.isnan().any(-1).all(-1, keepdim=True))
    return torch.where(call.query.isnan().any(-1) | no_key_BH1, torch.nan, 0.0)


def _pad(tensor: Tensor, width: int) -> Tensor:
    return tensor if tensor.shape[-1] == width else functional.pad(tensor, (0, width - tensor.shape[-1]))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = flash(query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale)
    return output, lse


def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
    output, lse, *_ = cudnn(query, key, value, bias, True, dropout, is_causal, False, scale=scale)
    return output, lse.squeeze(-1) if lse.dim() == 4 else lse


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    output, lse, *_ = flash(query, key, value, dropout, is_causal, False, scale=scale)
    return output, lse


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    output, lse, *_ = efficient(query, key, value, bias, True, dropout, is_causal, scale=scale)
    return output, lse


_HALF = (torch.bfloat16, torch.float16)

KERNELS = {
    "sdpa-cudnn": Kernel(
        _cudnn,
        "cuda",
        _HALF,
        bias=False,
        dropout=False,
        grouped=True,
        equal_widths=True,
        multiple=8,
        widest=128,
        capability=AMPERE,
    ),
    "sdpa-flash": Kernel(
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
    ),
    "sdpa-efficient": Kernel(
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
        _cpu,
        "cpu",
        (torch.float32, torch.float64, *_HALF),
        bias=True,
        dropout=False,
        grouped=True,
        equal_widths=True,
    ),
}
