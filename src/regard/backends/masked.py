"""masked: Triton kernels for inner products with masks, forward and backward; memory linear in length.

The kernels evaluate the mask in each tile of scores and skip tiles that are hidden as a whole. A key or value
that the mask hides from all queries of a tile has no effect there, even if it is NaN. So no copy of key and
value and no table of the mask is needed. Without a mask, PyTorch's kernels are faster, and "auto" uses them.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.backends.kernel_reasons import reasons_of_inner_kernels
from regard.backends.transforms import differentiable
from regard.call import Call, Forward
from regard.masks.mask import PLAIN, Mask
from regard.select import Soft

__all__ = ["not_requested", "reasons", "run", "skips_hidden"]

WIDEST = 256
"""The largest head width that the kernels support."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_inner_kernels(call)
    if not call.mask.only("causal", "lengths", "window"):
        reasons.append("supports no masks except causal(), padding() and window()")
    if call.dropout:
        reasons.append("has no dropout")
    if not call.scale > 0:
        reasons.append(f"needs a score function with a positive scale, not {call.scale:g}")
    widest = max(call.query.shape[-1], call.value.shape[-1])
    if widest > WIDEST:
        reasons.append(f"supports head widths up to {WIDEST}, not {widest}")
    return reasons


def not_requested(call: Call) -> list[str]:
    """Return why "auto" skips this backend although it can run the call; empty if "auto" may select it."""
    _, _, queries, keys = call.sizes
    square = call.start == 0 and queries == keys
    if not call.mask.parts or (call.mask.parts == ("causal",) and square):
        return ["the kernels of PyTorch are faster for this mask"]
    return []


def run(call: Call) -> Forward:
    """Compute attention with the Triton kernels.

    torch.compile and other tracers get the custom operator inner_forward, into which they do not trace.
    Otherwise its function is called directly, which takes less time on the host.
    """
    mask = call.mask.lengths, call.start, *call.mask.sides
    arguments = call.query, call.key, call.value, *mask, call.scale / call.temperature
    _load()
    if torch.compiler.is_compiling() or _traced(*arguments[:3]):
        return Forward(*torch.ops.regard.inner_forward(*arguments))
    if not call.trains:
        return Forward(*_functions[0](*arguments))
    return Forward(*_Inner.apply(*arguments))


def skips_hidden(call: Call) -> bool:
    """Return True: keys and values that the mask hides from all queries have no effect, even if NaN."""
    return True


def _traced(*tensors: Tensor) -> bool:
    """Whether a tracer such as FakeTensorMode records the operations on these tensors."""
    return torch._C._len_torch_dispatch_stack() > 0 or any(type(tensor) not in PLAIN for tensor in tensors)


_functions: list[Callable[..., Any]] = []
"""forward() and backward() of kernels/inner/operators.py, after the first call."""


def _load() -> bool:
    """Import the custom operators and Triton on the first call, and register the backward pass."""
    if not _functions:
        from regard.kernels.inner.operators import backward, forward, inner_forward

        inner_forward.register_autograd(_operator_backward, setup_context=_save)
        _functions.extend((forward, backward))
    return True


# Mark _load() so that torch.compile calls it while tracing; see _load() in fused.py.
vars(_load)["_dynamo_marked_constant"] = True


class _Inner(torch.autograd.Function):
    """The operator inner_forward with its backward pass, without the overhead of a custom operator."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        results: tuple[Tensor, Tensor] = _functions[0](*arguments)
        _save(ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx: Any, doutput: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, doutput, by_operator=doutput is not None and _traced(doutput))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the inputs of inner_forward and its outputs for the backward pass."""
    tensors, ctx.rest = inputs[:4], inputs[4:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _operator_backward(ctx: Any, doutput: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, doutput, by_operator=True)


def _gradients(ctx: Any, doutput: Tensor | None, by_operator: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs of inner_forward."""
    no_gradients = (None,) * 5  # of lengths, start, left, right and scale
    if doutput is None:
        return None, None, None, *no_gradients
    *inputs, output, lse = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # for a double backward
        call = _rebuilt_call(*inputs, *ctx.rest)
        gradients = list(differentiable(call, [*inputs[:3], None], doutput))[:3]
    else:
        operator: Any = torch.ops.regard.inner_backward if by_operator else _functions[1]
        gradients = operator(doutput, *inputs, *ctx.rest, output, lse)
    pairs = zip(gradients, ctx.needs_input_grad, strict=False)
    return *(gradient if needed else None for gradient, needed in pairs), *no_gradients


def _rebuilt_call(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, start: int, left: int | None,
    right: int | None, scale: float,
) -> Call:  # fmt: skip
    """Return a Call with these inputs of the operator inner_forward. A double backward needs it."""
    window = None if left is None and right is None else (left, right)
    mask = Mask(lengths=lengths, window=window)
    return Call(query, key, value, "inner", scale, None, mask, None, Soft(), start, 0.0)
