"""flex: PyTorch's FlexAttention, which compiles masks and biases into the kernel and skips hidden blocks.

On CUDA it takes what the fixed kernels cannot: predicates at length, biases in float32 beside queries in half
precision, biases that learn. On CPU it computes the forward alone, for checking: auto never takes it.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.backends import blocked
from regard.backends.transforms import once_differentiable, reasons_of_transforms
from regard.backends.visible_blocks import seen_blocks
from regard.call import Call, Forward
from regard.positions import Bias
from regard.select import Soft

__all__ = ["reasons", "run", "unasked"]

_COMPILER = shutil.which("g++") or shutil.which("clang++")

VARIANTS = 1 << 20
"""So many kinds of calls may be compiled in one process; PyTorch would raise after 8, or 256 in all."""

_HAS_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters
_LIMIT_LOCK = threading.Lock()


def reasons(call: Call) -> list[str]:
    """Why this backend cannot run the call."""
    found = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != "inner":
        found.append("computes inner products, and this score combines additively")
    if not isinstance(call.select, Soft):
        found.append(f"computes a softmax, and {type(call.select).__name__} is another selection")
    if device not in ("cuda", "cpu"):
        found.append(f"runs on cuda and cpu, the call is on {device}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        found.append("a size is 0")
    if call.query.dtype == torch.float64:
        found.append("takes float32, bfloat16 and float16, not float64")
    if call.dropout:
        found.append("has no dropout")
    if isinstance(call.bias, Bias) and (call.bias.asks_query or call.bias.reads):
        found.append(f"sees positions, not the query or the weights that {type(call.bias).__name__} needs")
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.bias_tensors)
    if learns and max(call.query.shape[-1], call.value.shape[-1]) > 64:
        found.append("learns a bias only with heads up to 64 wide")
    if device == "cpu" and call.trains:
        found.append("computes no gradients on cpu")
    if device == "cpu" and not _COMPILER:
        found.append("needs a C++ compiler on cpu (apt install g++)")
    if device == "cuda" and min(call.query.shape[-1], call.value.shape[-1]) < 16:
        found.append("takes heads of at least 16 on cuda")
    return found


def unasked(call: Call) -> list[str]:
    """Why auto does not take it although it could run."""
    return ["on cpu it compiles anew for every kind of call"] if call.query.device.type == "cpu" else []


def run(call: Call) -> Forward:
    """Compile the mask and the bias into the kernel, and run it."""
    from torch.nn.attention.flex_attention import AuxRequest

    if call.trains:
        query, key, value = once_differentiable(call.query, call.key, call.value)
        call = replace(call, query=query, key=key, value=value)
        if isinstance(call.bias, Tensor):
            call = replace(call, bias=once_differentiable(call.bias)[0])
    options = {
        "score_mod": _bias(call),
        "block_mask": seen_blocks(call) if call.mask.parts else None,
        "scale": call.scale / call.temperature,
        "enable_gqa": call.groups > 1,
    }
    if call.query.device.type == "cpu":  # where it does not give the lse
        key, value = call.key.clone(), call.value.clone()  # which may not be one tensor
        output = _run_compiled(call.query, key, value, **options)
        lse = blocked.run(replace(call, value=call.value[..., :0])).lse
    else:
        output, aux = _run_compiled(
            call.query, call.key, call.value, **options, return_aux=AuxRequest(lse=True)
        )
        lse = aux.lse
    assert lse is not None
    if not call.mask.parts and not isinstance(call.bias, Tensor):
        return Forward(output, lse)
    empty = lse.isneginf()  # no gradient comes from these rows, from the lse either
    return Forward(output.masked_fill(empty.unsqueeze(-1), 0.0), lse.masked_fill(empty, -torch.inf))


@functools.cache
def _compiled(static: bool) -> Callable[..., Any]:
    """static: whether to compile for each size by itself, or for sizes that vary once they do."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        # A function of our own: what else compiles flex_attention does not count towards our recompilations.
        return flex_attention(query, key, value, **options)

    # fullgraph: at the limit of recompilations PyTorch must raise, not fall back to a materialising path.
    options: dict[str, Any] = {"recompile_limit": VARIANTS} if _HAS_LIMIT else {}
    return torch.compile(attend, fullgraph=True, dynamic=False if static else None, **options)


def _run_compiled(query: Tensor, *others: Tensor, **options: Any) -> Any:
    """FlexAttention, compiled; again for each new kind of call, however many there were before."""
    static = query.device.type == "cpu"  # its code for sizes that vary does not always compile
    if torch.compiler.is_compiling():
        return _compiled(static)(query, *others, **options)
    from torch._inductor.exc import InductorError

    try:
        return _beyond_limit(static, query, *others, **options)
    except InductorError:
        if static:
            raise
    return _beyond_limit(True, query, *others, **options)


def _beyond_limit(static: bool, *tensors: Tensor, **options: Any) -> Any:
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        return _compiled(static)(*tensors, **options)
    except FailOnRecompileLimitHit:
        limits = {"recompile_limit": VARIANTS, "accumulated_recompile_limit": VARIANTS}
        with _LIMIT_LOCK, torch._dynamo.config.patch(limits):
            return _compiled(static)(*tensors, **options)


def _bias(call: Call) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    bias, device = call.bias, call.query.device
    if bias is None:
        return None
    # Tensors: a Python number that changes makes torch.compile compile again, and Inductor fails on it.
    start = torch.full((), call.start, device=device)
    temperature = torch.full((), call.temperature, dtype=torch.float32, device=device)
    if isinstance(bias, Bias):
        return lambda score, batch, head, row, j: score + bias.at(head, row + start, j) / temperature
    varies = tuple(size > 1 for size in bias.shape)
    numbers = bias.squeeze()

    def dense(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        index = tuple(each for each, used in zip((batch, head, row, j), varies, strict=True) if used)
        return score + numbers[index].to(score.dtype) / temperature

    return dense
