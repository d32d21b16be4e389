"""masked: Triton kernels for inner products with masks, forward and backward; memory linear in length.

The kernels evaluate the mask in each tile of scores and skip tiles that are hidden as a whole. A key or value
that the mask hides from all queries of a tile has no effect there, even if it is NaN. So no copy of key and
value and no table of the mask is needed. If the mask is only a bool tensor, or if it has documents, a small
kernel first finds the visible tiles. Without a mask, PyTorch's kernels are faster, and "auto" uses them.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from regard.backends.kernel_reasons import reasons_of_inner_kernels
from regard.backends.transforms import differentiable
from regard.call import Call, Forward
from regard.masks.mask import PLAIN, Mask
from regard.select import Soft

__all__ = ["attend", "not_requested", "reasons", "run", "skips_hidden"]

PARTS = ("causal", "lengths", "window", "documents", "table")

WIDEST = 256
"""The largest head width that the kernels support."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_inner_kernels(call)
    if not call.mask.only(*PARTS):
        reasons.append("supports all masks except those with where(), | or ~")
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
    tensors, mask, scale = (call.query, call.key, call.value), _mask(call), call.scale / call.temperature
    _load()
    if torch.compiler.is_compiling() or _traced(*tensors):
        return Forward(*torch.ops.regard.inner_forward(*tensors, *mask, scale))
    return Forward(*attend(*tensors, hidden_of(*mask), scale, call.trains))


def attend(
    query: Tensor, key: Tensor, value: Tensor, hidden: Any, scale: float, trains: bool
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T), if no tracer is active.

    hidden: the result of hidden_of().
    scale: factor of the inner product.
    trains: whether a gradient is needed.
    """
    if not trains:
        output, lse = _functions[1](query, key, value, hidden, scale)
        return output, lse
    results: list[Tensor] = []
    return _apply(query, key, value, (hidden, scale, results)), results[0]


def hidden_of(*mask: Any) -> Any:
    """Return the mask as kernels/inner/launch.Hidden. mask: the seven values that _mask() returns."""
    _load()
    return _functions[0](*mask)


def skips_hidden(call: Call) -> bool:
    """Return True: keys and values that the mask hides from all queries have no effect, even if NaN."""
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
"""Hidden, forward() and backward() of kernels/inner/operators.py, after the first call."""


def _load() -> bool:
    """Import the custom operators and Triton on the first call, and register the backward pass."""
    if not _functions:
        from regard.kernels.inner.operators import Hidden, backward, forward, inner_forward

        inner_forward.register_autograd(_operator_backward, setup_context=_save)
        _functions.extend((Hidden, forward, backward))
    return True


# Mark _load() so that torch.compile calls it while tracing; see _load() in fused.py.
vars(_load)["_dynamo_marked_constant"] = True


class _Inner(torch.autograd.Function):
    """The operator inner_forward with its backward pass, without the overhead of a custom operator.

    Each argument, result and attribute of ctx takes time on the host. So the arguments without a gradient are
    one tuple, and the lse, which has no gradient, is appended to a list.

    call: the mask, the scale, and this list.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: tuple[Any, ...]) -> Tensor:
        hidden, scale, results = call
        output, own_lse = _functions[1](query, key, value, hidden, scale)
        results.append(own_lse)
        ctx.rest = hidden[4:], scale
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, output, own_lse, *hidden[:4])
        return cast(Tensor, output)

    @staticmethod
    def backward(ctx: Any, doutput: Tensor | None) -> tuple[Tensor | None, ...]:
        if doutput is None:
            return (None,) * 4
        query, key, value, output, lse, *mask = ctx.saved_tensors
        place, scale = ctx.rest
        if torch.is_grad_enabled():  # for a double backward
            gradients = _differentiable(doutput, (query, key, value), (*mask, *place), scale)
        elif _traced(doutput):
            operator: Any = torch.ops.regard.inner_backward
            gradients = operator(doutput, query, key, value, *mask, *place, scale, output, lse)
        else:
            hidden = hidden_of(*mask, *place)
            gradients = _functions[2](doutput, query, key, value, output, lse, hidden, scale)
        dquery, dkey, dvalue = gradients
        needs = ctx.needs_input_grad
        return (
            dquery if needs[0] else None, dkey if needs[1] else None, dvalue if needs[2] else None, None,
        )  # fmt: skip


# Function.apply() without its support for functorch, for which this backend is not used.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Inner).apply


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the inputs of inner_forward and its outputs for the backward pass of the operator."""
    tensors, ctx.rest = inputs[:7], inputs[7:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _operator_backward(ctx: Any, doutput: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    if doutput is None:
        return None, None, None, *_NO_GRADIENTS
    *inputs, output, lse = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # for a double backward
        mask, scale = (*inputs[3:], *ctx.rest[:3]), ctx.rest[3]
        gradients = _differentiable(doutput, tuple(inputs[:3]), mask, scale)
    else:
        gradients = torch.ops.regard.inner_backward(doutput, *inputs, *ctx.rest, output, lse)
    pairs = zip(gradients, ctx.needs_input_grad, strict=False)
    return *(gradient if needed else None for gradient, needed in pairs), *_NO_GRADIENTS


def _differentiable(
    doutput: Tensor, tensors: tuple[Any, ...], mask: tuple[Any, ...], scale: float
) -> list[Tensor | None]:
    """Return the gradients of query, key and value, computed so that they can be differentiated again."""
    arguments: Any = (*tensors, *mask, scale)
    call = _rebuilt_call(*arguments)
    return list(differentiable(call, [*tensors, None], doutput))[:3]


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
