"""fused: Triton kernels for additive attention, forward and backward; memory linear in T + S.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests. If the query in one row
attends to a NaN, other rows of the same tile can become NaN too.

Masks by length, window and documents are part of the kernels. A bool tensor, another mask or a position
scheme becomes a bias, a tensor broadcastable to (B, H, T, S); -inf hides a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.backends.kernel_reasons import reasons_of_kernels
from regard.backends.transforms import differentiable
from regard.call import Call, Forward
from regard.kernels.launch import MAX_GRID
from regard.masks.mask import PLAIN, Mask
from regard.positions import Bias
from regard.select import Soft

__all__ = ["not_requested", "reasons", "run", "skips_hidden"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

LARGE_TABLE = 1 << 28
"""Maximum number of elements of a bias that this backend creates from a mask or a position scheme: 1 GiB of
float32."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_kernels(call, "additive")
    if isinstance(call.bias, Bias) and call.bias.reads:
        reasons.append(f"does not support {type(call.bias).__name__} with values")
    if _creates_table(call) and math.prod(call.sizes) > LARGE_TABLE:
        reasons.append(
            "would need a large tensor (B, H, T, S) for this mask or bias; causal(), padding(), window() and "
            "documents() need none"
        )
    if call.query.dtype not in DTYPES or call.value.dtype != call.query.dtype:
        reasons.append(
            "supports float32, bfloat16 and float16, the same for all tensors; "
            f"query is {call.query.dtype}, value is {call.value.dtype}"
        )
    batch, heads, _, _ = call.sizes
    if batch * heads > MAX_GRID:
        reasons.append(f"supports B * H up to {MAX_GRID:,}, not {batch * heads:,}")
    return reasons


def _creates_table(call: Call) -> bool:
    """Whether run() creates a bias for the call: from a mask that the kernels do not have, or from a Bias."""
    return not call.mask.only("causal", "lengths", "window", "documents") or isinstance(call.bias, Bias)


def _bias(call: Call) -> Tensor | None:
    """Return what the call adds to its scores, broadcastable to (B, H, T, S); None if nothing.

    It is the bias of the call, with -inf where a bool tensor or a condition of the mask hides a key. Autograd
    differentiates this function, so that the parameters of a position scheme get their gradients.
    """
    bias = call.bias_tile(call.query, call.whole) if call.bias is not None else None
    mask = call.mask
    if mask.table is not None or mask.condition is not None:
        visible = Mask(table=mask.table, condition=mask.condition).tile(call.whole)
        nothing = torch.zeros((), dtype=torch.float32, device=visible.device)
        bias = torch.where(visible, nothing if bias is None else bias, -torch.inf)
    if bias is None:
        return None
    return bias if bias.dim() == 4 else bias.reshape((1,) * (4 - bias.dim()) + bias.shape)


def not_requested(call: Call) -> list[str]:
    """Return why "auto" does not select this backend although it can run the call; empty if it may."""
    if _creates_table(call) and math.prod(call.sizes) > LARGE_TABLE // 4:
        return ["would need more than 256 MiB for this mask or bias, but blocked needs little memory"]
    return []


def skips_hidden(call: Call) -> bool:
    """Whether the kernels read no key or value that the mask of this call hides: if it is padding() alone."""
    return call.mask.parts == ("lengths",) and call.bias is None


def run(call: Call) -> Forward:
    """Compute attention with the Triton kernels.

    torch.compile and other tracers get the custom operator additive_forward, into which they do not trace.
    Otherwise its function is called directly, which takes less time on the host.
    """
    assert call.vector is not None
    bias, seed = _bias(call), None
    if call.dropout:  # on the device, so that each replay of a CUDA graph draws a new seed
        seed = torch.randint(2**31, (1,), device=call.query.device)
    documents = (None if ids is None else ids.contiguous() for ids in call.mask.documents or (None, None))
    mask = call.mask.lengths, *documents, call.start, *call.mask.sides
    tensors = (call.query, call.key, call.value, call.vector)
    arguments = (*tensors, *mask, 1.0 / call.temperature, call.trains, bias, seed, call.dropout)
    _load()
    if torch.compiler.is_compiling() or _traced(tensors):
        output, lse, *_ = torch.ops.regard.additive_forward(*arguments)
    else:
        output, lse, *_ = (_Additive.apply if call.trains else _functions[0])(*arguments)
    return Forward(output, lse)


def _traced(tensors: tuple[Tensor, ...]) -> bool:
    """Whether a tracer such as FakeTensorMode records the operations on these tensors."""
    return torch._C._len_torch_dispatch_stack() > 0 or any(type(tensor) not in PLAIN for tensor in tensors)


_functions: list[Callable[..., Any]] = []
"""run_forward() and run_backward() of kernels/additive/operators.py, after the first call."""


def _load() -> bool:
    """Import the custom operators and Triton on the first call, and register the backward pass."""
    if not _functions:
        from regard.kernels.additive.operators import additive_forward, run_backward, run_forward

        additive_forward.register_autograd(_operator_backward, setup_context=_save)
        _functions.extend((run_forward, run_backward))
    return True


# Mark _load() so that torch.compile calls it while tracing. torch.compiler.assume_constant_result would do
# the same, but it would import the compiler when regard is imported.
vars(_load)["_dynamo_marked_constant"] = True


class _Additive(torch.autograd.Function):
    """The operator additive_forward with its backward pass, without the overhead of a custom operator."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = _functions[0](*arguments)
        _save(ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx: Any, doutput: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        return _operator_backward(ctx, doutput)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save for the backward pass: the inputs of additive_forward, and its outputs `norm` and `scores`."""
    query, key, value, vector, lengths, of_query, of_key, *rest, bias, seed, dropout = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, vector, lengths, of_query, of_key, bias, seed, *output[2:])
    ctx.rest = *rest[:4], dropout


def _operator_backward(ctx: Any, doutput: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    no_gradients = (None,) * 8  # eight inputs between vector and bias: the six of the mask, scale and hold
    if doutput is None:
        return (None,) * 15
    needed = (*ctx.needs_input_grad[:4], ctx.needs_input_grad[12])
    query, key, value, vector, *others = ctx.saved_tensors
    *gradients, dbias = _gradients(doutput, (query, key, value, vector), others, ctx.rest, needed)
    return *gradients, *no_gradients, dbias, None, None


def _gradients(
    doutput: Tensor, tensors: tuple[Tensor, ...], others: Sequence[Any], rest: tuple[Any, ...],
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of query, key, value, vector and bias; None for those that are not needed.

    others: lengths, document ids of queries and keys, bias, seed, norm and scores.
    rest: start, left, right, scale and dropout.
    """
    lengths, of_query, of_key, bias, seed, norm, scores = others
    start, left, right, scale, dropout = rest
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # for a double backward
        from regard.kernels.additive.operators import with_heads

        lifted = list(with_heads(*tensors))
        call = _rebuilt_call(lifted, lengths, of_query, of_key, start, left, right, scale, bias, dropout)
        doutput = doutput.unsqueeze(1) if doutput.dim() == 3 else doutput
        *gradients, dbias = differentiable(call, [*lifted, bias], doutput)
        return *(_shaped(gradient, like) for gradient, like in zip(gradients, tensors, strict=True)), dbias
    operator: Any = torch.ops.regard.additive_backward
    if not torch.compiler.is_compiling() and not _traced((doutput, *tensors)):
        operator = _functions[1]
    dquery, dkey, dvalue, dvector, dbias = operator(
        doutput, *tensors, norm, scores, lengths, of_query, of_key, start, left, right, scale,
        needed[1] or needed[2] or needed[3], bias, seed, dropout, needed[4],
    )  # fmt: skip
    return (
        dquery if needed[0] else None, dkey if needed[1] else None, dvalue if needed[2] else None,
        dvector if needed[3] else None, dbias if needed[4] else None,
    )  # fmt: skip


def _shaped(gradient: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a gradient without the dimensions that with_heads() has added."""
    if gradient is None or gradient.dim() == like.dim():
        return gradient
    return gradient.squeeze(1 if like.dim() == 3 else 0)


def _rebuilt_call(
    tensors: list[Tensor], lengths: Tensor | None, of_query: Tensor | None, of_key: Tensor | None, start: int,
    left: int | None, right: int | None, scale: float, bias: Tensor | None, dropout: float,
) -> Call:  # fmt: skip
    """Return a Call with these inputs of the operator additive_forward. A double backward needs it.

    tensors: query, key, value and vector.
    """
    query, key, value, vector = tensors
    documents = None if of_query is None or of_key is None else (of_query, of_key)
    window = None if left is None and right is None else (left, right)
    mask = Mask(lengths=lengths, window=window, documents=documents)
    select = Soft(1.0 / scale)
    return Call(query, key, value, "additive", 1.0, vector, mask, bias, select, start, dropout)
