"""torch.func, forward-mode AD and double backward, for backends that do not support all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import BackendError, message

__all__ = ["once_differentiable", "reasons_of_transforms"]

_HINT = 'backend="reference" supports torch.func, forward-mode AD and double backward'


def reasons_of_transforms(vmap: bool = False) -> list[str]:
    """Why a backend cannot run inside the torch.func transforms that are active now; vmap: whether it can be
    transformed by vmap and by one level of grad."""
    if torch.compiler.is_compiling():
        return []
    if forward_ad._current_level >= 0:
        return ["has no forward-mode derivative (jvp)"]
    stack = torch._C._functorch.get_interpreter_stack()
    if not stack:
        return []
    if not vmap:
        return ["cannot be transformed by torch.func"]
    levels = [level.key() for level in stack]
    if levels.count(torch._C._functorch.TransformType.Grad) > 1:
        return ["cannot be differentiated twice"]
    return []


def once_differentiable(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors; a gradient of their gradient raises a BackendError that names the way out."""
    if torch.compiler.is_compiling() or torch._C._functorch.get_interpreter_stack():
        return tensors
    return tuple(_hooked(tensor) if tensor.requires_grad else tensor for tensor in tensors)


def _hooked(tensor: Tensor) -> Tensor:
    view = tensor.view_as(tensor)  # the hook must not stay on a tensor of the user
    view.register_hook(lambda gradient: _Once.apply(gradient) if torch.is_grad_enabled() else gradient)
    return view


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        problem = "PyTorch's fused kernels (sdpa, flex) cannot be differentiated twice"
        raise BackendError(message("attention()", problem, hint=_HINT))
