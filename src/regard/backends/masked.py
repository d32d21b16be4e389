"""masked: Triton kernels for inner products with masks, forward and backward; memory linear in length.

The kernels evaluate the mask in each tile of scores and skip tiles that are hidden as a whole. They read no
key and no value that the mask hides from all queries of a tile, so these may be NaN, and no copy of key and
value and no table of the mask is needed. If the mask is a bool tensor, a small kernel first lists the tiles
that are visible. Without a mask, PyTorch's kernels are faster, and "auto" uses them.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.backends import flex
from regard.backends.double_backward import differentiable
from regard.backends.inner_kernels import reasons_of_inner_kernels
from regard.call import Call, Forward
from regard.masks.mask import Mask
from regard.masks.readable import PLAIN
from regard.select import Soft

__all__ = ["attend", "not_requested", "reasons", "run", "skips_hidden"]

PARTS = ("causal", "lengths", "window", "documents", "table")

WIDEST = 256
"""The largest head width that the kernels support."""

LARGE_TABLE = 1 << 24
"""If T x S is at least this number, "auto" prefers flex for documents and bool tensors: flex skips blocks
that these masks hide, and the kernels here do not."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_inner_kernels(call)
    if not call.mask.only(*PARTS):
        reasons.append("supports all masks except those with where(), | or ~")
    if call.dropout:
        reasons.append("has no dropout")
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
    large = queries * keys >= LARGE_TABLE and not call.mask.only("causal", "lengths", "window")
    return ["flex is faster for this mask"] if large and not flex.reasons(call) else []


def run(call: Call) -> Forward:
    """Compute attention with the Triton kernels.

    torch.compile and other tracers get the custom operator inner_forward, into which they do not trace.
    Otherwise its function is called directly, which takes less time on the host.
    """
    arguments = (*_mask(call), call.scale / call.temperature)
    return Forward(*attend(call.query, call.key, call.value, *arguments, trains=call.trains))


def attend(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, trains: bool) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    arguments: the mask as _mask() returns it, and the factor of the inner product.
    trains: whether a gradient is needed.
    """
    _load()
    if torch.compiler.is_compiling() or _traced(query, key, value):
        output, lse = torch.ops.regard.inner_forward(query, key, value, *arguments)
    elif trains:
        output, lse = _Inner.apply(query, key, value, *arguments)
    else:
        output, lse = _functions[0](query, key, value, *arguments)
    return output, lse


def skips_hidden(call: Call) -> bool:
    """Whether hidden keys and values have no effect even if they are NaN: always."""
    return True


def _traced(*tensors: Tensor) -> bool:
    """Whether a tracer such as FakeTensorMode records the operations on these tensors."""
    return torch._C._len_torch_dispatch_stack() > 0 or any(type(tensor) not in PLAIN for tensor in tensors)


def _mask(call: Call) -> tuple[Any, ...]:
    """Return the mask as seven arguments of the operator inner_forward.

    In this order: lengths, the bool tensor, the document ids of queries and of keys, `start` of the call,
    and the left and right limit of the window. An argument other than `start` is None if the mask does not
    have this part.
    """
    mask = call.mask
    documents = (None if ids is None else ids.contiguous() for ids in mask.documents or (None, None))
    return mask.lengths, mask.table, *documents, call.start, *mask.sides


_functions: list[Callable[..., Any]] = []
"""run_forward() and run_backward() of kernels/inner_attention.py, after the first call."""


def _load() -> bool:
    """Import the custom operators and Triton on the first call, and register the backward pass."""
    if not _functions:
        from regard.kernels.inner_attention import inner_forward, run_backward, run_forward

        inner_forward.register_autograd(_backward, setup_context=_save)
        _functions.extend((run_forward, run_backward))
    return True


# Mark _load() so that torch.compile calls it while tracing; see _load() in fused.py.
vars(_load)["_dynamo_marked_constant"] = True


class _Inner(torch.autograd.Function):
    """The operator inner_forward with its backward pass, without the layers of a custom operator."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _functions[0](*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, doutput: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, doutput)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the inputs of inner_forward and its outputs for the backward pass."""
    tensors, ctx.rest = inputs[:7], inputs[7:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, doutput: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, output, lse = ctx.saved_tensors
    query, key, value = inputs[:3]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # for a double backward
        gradients = differentiable(_rebuilt_call(*inputs, *ctx.rest), [query, key, value, None], doutput)
        return *gradients[:3], *_NO_GRADIENTS
    operator: Any = torch.ops.regard.inner_backward
    if not torch.compiler.is_compiling() and not _traced(doutput, query, key, value):
        operator = _functions[1]
    gradients = operator(doutput, *inputs, *ctx.rest, output, lse)
    pairs = zip(gradients, ctx.needs_input_grad, strict=False)
    return *(gradient if needed else None for gradient, needed in pairs), *_NO_GRADIENTS


_NO_GRADIENTS = (None,) * 8  # of the arguments after value: the seven of _mask(), and scale


def _rebuilt_call(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, table: Tensor | None,
    of_query: Tensor | None, of_key: Tensor | None, start: int, left: int | None, right: int | None,
    scale: float,
) -> Call:  # fmt: skip
    """Return a Call with these inputs of the operator inner_forward. A double backward needs it."""
    documents = None if of_query is None or of_key is None else (of_query, of_key)
    window = None if left is None and right is None else (left, right)
    mask = Mask(lengths=lengths, window=window, documents=documents, table=table)
    return Call(query, key, value, "inner", scale, None, mask, None, Soft(), start, 0.0)
