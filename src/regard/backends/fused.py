"""fused: additive attention by kernels in Triton, forward and backward, in memory linear in T + S.

For everything that combines additively, on CUDA. With TRITON_INTERPRET=1 in the environment before the first
call the kernels are interpreted on the CPU, slowly, for checking. A NaN that one row may see can spread to
other rows of its tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.backends.double_backward import differentiable
from regard.backends.transforms import reasons_of_transforms
from regard.call import Call, Forward
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.kernels.launch import Shape
from regard.masks.mask import Mask
from regard.positions import Bias
from regard.select import Soft

__all__ = ["approximations", "reasons", "run"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MOST = 65535
"""Programs that CUDA lets stand behind one another in a grid."""


def reasons(call: Call) -> list[str]:
    """Why this backend cannot run the call."""
    found = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != "additive":
        found.append("adds query and key, and this score is an inner product")
    if not TRITON:
        found.append(f"needs triton ({install_command('kernels')})")
    if device != "cuda" and not (device == "cpu" and interpreting()):
        found.append(f"runs on cuda, the call is on {device}")
    if not isinstance(call.select, Soft):
        found.append(f"computes a softmax, and {type(call.select).__name__} is another selection")
    if not call.mask.only("causal", "lengths", "window", "documents"):
        found.append("knows causal, padding, window and documents; this mask has to be asked or looked up")
    if call.bias is not None:
        found.append("adds no " + (type(call.bias).__name__ if isinstance(call.bias, Bias) else "bias"))
    if call.dropout:
        found.append("has no dropout")
    if call.query.dtype not in DTYPES or call.value.dtype != call.query.dtype:
        found.append("takes float32, bfloat16 and float16, one of them for all")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        found.append("a size is 0")
    batch, heads, _, _ = call.sizes
    if batch * heads > MOST:
        found.append(f"runs at most {MOST:,} sequences and heads at once, and these are {batch * heads:,}")
    return found


def approximations(call: Call) -> list[str]:
    """What is computed by an approximation: see regard.kernels.additive_series."""
    if not call.trains or not Shape.of(call.query, call.key, call.value).series:
        return []
    return [
        "gradients of query, key and vector use the Fourier series of tanh, an approximation within bfloat16 "
        'rounding; backend="blocked", or float32 inputs, give the exact ones'
    ]


def run(call: Call) -> Forward:
    """One operator that torch.compile sees whole, with a backward pass of its own."""
    assert call.vector is not None and _load()
    output, lse, *_ = torch.ops.regard.additive_forward(
        call.query, call.key, call.value, call.vector, *_seen(call), 1.0 / call.temperature, call.trains
    )
    return Forward(output, lse)


def _seen(call: Call) -> tuple[Any, ...]:
    """The mask as the operator takes it: a row sees from `left` before it to `right` behind it."""
    mask = call.mask
    documents = (None if ids is None else ids.contiguous() for ids in mask.documents or (None, None))
    return mask.lengths, *documents, call.start, *mask.sides


_loaded: list[str] = []


def _load() -> bool:
    """Load the operators, and Triton with them, when they are first wanted."""
    if not _loaded:
        from regard.kernels.additive import additive_forward

        additive_forward.register_autograd(_backward, setup_context=_remember)
        _loaded.append(additive_forward._qualname)
    return True


# torch.compile runs it while it traces, as torch.compiler.assume_constant_result would have it, which would
# import the compiler with regard.
vars(_load)["_dynamo_marked_constant"] = True


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, vector, lengths, of_query, of_key, *rest = inputs
    _, *held = output
    ctx.mark_non_differentiable(*held)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, vector, lengths, of_query, of_key, *held[1:])
    ctx.rest = rest


def _backward(ctx: Any, doutput: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, vector, lengths, of_query, of_key, norm, scores = ctx.saved_tensors
    start, left, right, scale, _ = ctx.rest
    nothing = (None,) * 8
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        call = _again(query, key, value, vector, lengths, of_query, of_key, start, left, right, scale)
        return *differentiable(call, [query, key, value, vector], doutput), *nothing
    found = torch.ops.regard.additive_backward(
        doutput, query, key, value, vector, norm, scores,
        lengths, of_query, of_key, start, left, right, scale, any(ctx.needs_input_grad[1:4]),
    )  # fmt: skip
    wanted = (each if needed else None for each, needed in zip(found, ctx.needs_input_grad, strict=False))
    return *wanted, *nothing


def _again(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
    of_query: Tensor | None, of_key: Tensor | None, start: int, left: int | None, right: int | None,
    scale: float,
) -> Call:  # fmt: skip
    """The call that the operator was given, for a gradient that will itself be differentiated."""
    documents = None if of_query is None or of_key is None else (of_query, of_key)
    window = None if left is None and right is None else (left, right)
    mask = Mask(lengths=lengths, window=window, documents=documents)
    return Call(query, key, value, "additive", 1.0, vector, mask, None, Soft(1.0 / scale), start, 0.0)
