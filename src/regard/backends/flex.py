"""flex: PyTorch's FlexAttention, which compiles masks and biases into the kernel and skips masked blocks.

On CUDA it supports calls that the other fused kernels do not support (where() masks for long sequences,
float32 biases with half-precision queries, learned biases). On CPU it computes the forward pass only and is
meant for tests; "auto" never selects it on CPU.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.backends import blocked
from regard.backends.transforms import once_differentiable, once_differentiable_node, reasons_of_transforms
from regard.backends.visible_blocks import seen_blocks
from regard.call import Call, Forward
from regard.positions import Bias
from regard.select import Soft

__all__ = ["reasons", "run", "not_requested"]

ScoreChange = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, row, key) -> score: a change of one score, which is compiled into the kernel."""

CPU_SUPPORT = {
    "needs a C++ compiler on cpu (apt install g++)": bool(shutil.which("g++") or shutil.which("clang++")),
    "needs an x86-64 processor with AVX2 on cpu, and not macOS": (
        sys.platform != "darwin" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    ),
}
"""What FlexAttention needs on a CPU -> whether this machine has it."""

VARIANTS = 1 << 20
"""Maximum number of compiled variants of flex_attention. PyTorch's default limits would be too low:
torch.compile raises an error after 8 variants of a function, or 256 variants in total."""

_HAS_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters
_LIMIT_LOCK = threading.Lock()


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != "inner":
        reasons.append("computes inner products, but this score is additive")
    if not isinstance(call.select, Soft):
        reasons.append(f"computes Soft only, not {type(call.select).__name__}")
    if device not in ("cuda", "cpu"):
        reasons.append(f"runs on cuda and cpu, but the call is on {device}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if call.query.dtype == torch.float64:
        reasons.append("supports float32, bfloat16 and float16, not float64")
    if call.dropout:
        reasons.append("has no dropout")
    if isinstance(call.bias, Bias) and (call.bias.asks_query or call.bias.reads):
        reasons.append(
            "supports only a bias that is a function of the positions; "
            f"{type(call.bias).__name__} also depends on the query or on learned weights"
        )
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.bias_tensors)
    if learns and max(call.query.shape[-1], call.value.shape[-1]) > 64:
        reasons.append("supports gradients of a bias only for head widths up to 64")
    if device == "cpu" and call.trains:
        reasons.append("computes no gradients on cpu")
    if device == "cpu":
        reasons += [need for need, there in CPU_SUPPORT.items() if not there]
    if device == "cuda" and min(call.query.shape[-1], call.value.shape[-1]) < 16:
        reasons.append("needs a head width of at least 16 on cuda")
    return reasons


def not_requested(call: Call) -> list[str]:
    """Return why "auto" skips this backend although it can run the call; empty if "auto" may select it."""
    return ["on cpu it recompiles for every new shape or mask"] if call.query.device.type == "cpu" else []


def run(call: Call) -> Forward:
    """Compute the forward pass with FlexAttention; mask and bias are compiled into its kernel."""
    from torch.nn.attention.flex_attention import AuxRequest

    if call.trains:
        query, key, value = once_differentiable(call.query, call.key, call.value)
        call = replace(call, query=query, key=key, value=value)
        if isinstance(call.bias, Tensor):
            call = replace(call, bias=once_differentiable(call.bias)[0])
    options = {
        "score_mod": _score_change(call),
        "block_mask": seen_blocks(call) if call.mask.parts else None,
        "scale": call.scale if call.softcap is not None else call.scale / call.temperature,
        "enable_gqa": call.groups > 1,
    }
    if call.query.device.type == "cpu":  # FlexAttention does not return the lse on CPU: compute it separately
        # In some versions of PyTorch, the CPU lowering fails if key and value are the same buffer. The error
        # is "Unsupported for now if query, key, value are the same buffer" (pytorch/pytorch issue 157612).
        # PyTorch 2.13 accepts such inputs.
        key, value = call.key.clone(), call.value.clone()
        output = _run_compiled(call.query, key, value, **options)
        lse = blocked.run(replace(call, value=call.value[..., :0])).lse
    else:
        output, aux = _run_compiled(
            call.query, call.key, call.value, **options, return_aux=AuxRequest(lse=True)
        )
        lse = aux.lse
    if call.trains and isinstance(call.bias, Bias):
        once_differentiable_node(output)
    assert lse is not None
    if not call.mask.parts and not isinstance(call.bias, Tensor):
        return Forward(output, lse)
    empty = lse.isneginf()  # rows that see no key; masked_fill also stops their gradients
    return Forward(output.masked_fill(empty.unsqueeze(-1), 0.0), lse.masked_fill(empty, -torch.inf))


@functools.cache
def _compiled(static: bool) -> Callable[..., Any]:
    """Return PyTorch's flex_attention, compiled by torch.compile.

    static: whether to compile flex_attention again for each new shape of the inputs. If False, dynamic shapes
        are allowed.
    """
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        # torch.compile has a limit on the recompilations of each function. This function is separate, so that
        # calls of flex_attention from other code do not count towards its limit.
        return flex_attention(query, key, value, **options)

    # With fullgraph=True, PyTorch raises an error at the recompile limit. Otherwise it would fall back to
    # eager code, which allocates T x S.
    options: dict[str, Any] = {"recompile_limit": VARIANTS} if _HAS_LIMIT else {}
    return torch.compile(attend, fullgraph=True, dynamic=False if static else None, **options)


def _run_compiled(query: Tensor, *others: Tensor, **options: Any) -> Any:
    """Run the compiled flex_attention. If Inductor fails with dynamic shapes, compile it for these shapes."""
    static = query.device.type == "cpu"  # on CPU, compilation with dynamic shapes can fail
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
    """Run the compiled flex_attention. At PyTorch's recompile limit, increase the limit and try again."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        return _compiled(static)(*tensors, **options)
    except FailOnRecompileLimitHit:
        limits = {"recompile_limit": VARIANTS, "accumulated_recompile_limit": VARIANTS}
        with _LIMIT_LOCK, torch._dynamo.config.patch(limits):
            return _compiled(static)(*tensors, **options)


def _score_change(call: Call) -> ScoreChange | None:
    """Return the score_mod of FlexAttention: soft cap, then bias; None if the call has neither.

    Without a soft cap, the scores that it gets are divided by the temperature already.
    """
    add = _bias(call)
    if call.softcap is None:
        return add
    device = call.query.device
    cap = torch.full((), call.softcap, dtype=torch.float32, device=device)
    temperature = torch.full((), call.temperature, dtype=torch.float32, device=device)

    def change(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        limited = cap * torch.tanh(score / cap) / temperature
        return limited if add is None else add(limited, batch, head, row, j)

    return change


def _bias(call: Call) -> ScoreChange | None:
    bias, device = call.bias, call.query.device
    if bias is None:
        return None
    # `start` and `temperature` are converted to tensors. With Python numbers, torch.compile would recompile
    # for each new number, and Inductor would fail.
    start = torch.full((), call.start, device=device)
    temperature = torch.full((), call.temperature, dtype=torch.float32, device=device)
    if isinstance(bias, Bias):
        return lambda score, batch, head, row, j: score + bias.at(head, row + start, j) / temperature
    varies = tuple(size > 1 for size in bias.shape)
    squeezed = bias.squeeze()

    def dense(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        index = tuple(each for each, used in zip((batch, head, row, j), varies, strict=True) if used)
        return score + squeezed[index].to(score.dtype) / temperature

    return dense
