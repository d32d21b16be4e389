"""Detect torch.func transforms, forward-mode AD and double backward, which not all backends support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.backends import reference
from regard.call import Call
from regard.errors import BackendError, message

__all__ = ["differentiable", "once_differentiable_node", "reasons_of_transforms"]

_HINT = 'use backend="reference", which supports torch.func, forward-mode AD and double backward'


def reasons_of_transforms(vmap: bool = False) -> list[str]:
    """Return why a backend cannot run inside the active torch.func transforms; empty if it can.

    vmap: whether the backend supports vmap and one level of grad. If False, it supports no transform at all.
    """
    if torch.compiler.is_compiling():
        return []
    if forward_ad._current_level >= 0:
        return ["does not support forward-mode AD (jvp)"]
    stack = torch._C._functorch.get_interpreter_stack()
    if not stack:
        return []
    if not vmap:
        return ["does not support torch.func transforms"]
    levels = [level.key() for level in stack]
    if levels.count(torch._C._functorch.TransformType.Grad) > 1:
        return ["does not support double backward"]
    return []


def once_differentiable_node(output: Tensor) -> None:
    """Make a double backward through the operation that computed `output` raise a BackendError.

    This covers tensors that the operation uses but does not get as arguments too, such as the parameters of a
    position scheme.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.get_interpreter_stack():
        return
    if output.grad_fn is not None:
        output.grad_fn.register_hook(_raise_in_double_backward)


def _raise_in_double_backward(
    gradients: tuple[Tensor | None, ...], _: object
) -> tuple[Tensor | None, ...] | None:
    """Hook of an autograd node: a double backward through the gradients of this node raises."""
    if not torch.is_grad_enabled():
        return None
    return tuple(None if gradient is None else _Once.apply(gradient) for gradient in gradients)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        problem = "PyTorch's fused kernels (sdpa, flex) do not support double backward"
        raise BackendError(message("attention()", problem, hint=_HINT))


def differentiable(call: Call, tensors: Sequence[Tensor | None], doutput: Tensor) -> list[Tensor | None]:
    """Return gradients of `tensors` that can be differentiated again, computed by the reference backend.

    tensors: query, key, value, vector and the tensors of the bias, as passed to the backend.
    doutput: gradient of the output.

    A tensor that does not require a gradient gets None. Unlike the backends that call it, this function
    allocates tensors of size T x S.
    """
    if call.dropout:
        raise BackendError(
            message(
                "attention()",
                "the backend 'fused' does not support double backward with dropout",
                hint='use backend="reference"',
            )
        )
    query, key, value, vector, *bias = tensors
    assert query is not None and key is not None and value is not None
    call = replace(call, query=query, key=key, value=value, vector=vector)
    if isinstance(call.bias, Tensor):
        call = replace(call, bias=bias[0])
    learned = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    output = reference.run(call).output
    gradients = iter(torch.autograd.grad(output, learned, doutput, create_graph=True, allow_unused=True))
    return [next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in tensors]
