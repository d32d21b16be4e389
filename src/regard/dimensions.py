"""Add missing dimensions to inputs, (T, D) or (B, T, D) to (B, H, T, D), and remove them from results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, message

__all__ = ["autocast_on", "check_tensors", "full_precision", "in_transform", "lift", "lower", "one_row"]


def check_tensors(call: str, **arguments: object) -> None:
    """Raise ArgumentError unless all arguments are tensors.

    >>> check_tensors("prepare()", key=[1.0])
    Traceback (most recent call last):
    regard.errors.ArgumentError: prepare(): key is of type list
    expected: a tensor
    hint: use torch.as_tensor(...)
    """
    for name, argument in arguments.items():
        if not isinstance(argument, Tensor):
            problem, hint = f"{name} is of type {type(argument).__name__}", "use torch.as_tensor(...)"
            raise ArgumentError(message(call, problem, expected="a tensor", hint=hint))


def lift(tensor: Tensor) -> Tensor:
    """Return a view of (T, D) or (B, T, D) as (B, H, T, D), with B = 1 or H = 1 where they are missing."""
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor


def one_row(table: Any) -> Any:
    """Return a mask or bias tensor (S,) of a single query as (1, S); anything else unchanged."""
    return table[None] if isinstance(table, Tensor) and table.dim() == 1 else table


def lower(dims: int) -> Callable[[Tensor], Tensor]:
    """Return a function that removes the dimensions that lift() has added, from a result (B, H, ...).

    dims: number of dimensions of the user's query.
    """
    if dims == 4:
        return lambda tensor: tensor
    # squeeze() is used instead of tensor[:, 0], whose backward pass would allocate zeros and copy the
    # gradient.
    return (lambda tensor: tensor.squeeze(1)) if dims == 3 else (lambda tensor: tensor.squeeze(0).squeeze(0))


def autocast_on(device: str) -> bool:
    """Whether torch.autocast is active for this device type; always False for the meta device."""
    return device != "meta" and torch.is_autocast_enabled(device)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast on the device of x.

    A state that is rounded to half precision at every step loses what it stores, and the recurrent layers of
    cuDNN would compute in float16, in which small gradients underflow.

    >>> with torch.autocast("cpu"), full_precision(torch.zeros(1)):
    ...     torch.is_autocast_enabled("cpu")
    False
    """
    device = x.device.type
    return torch.autocast(device, enabled=False) if autocast_on(device) else nullcontext()


def in_transform() -> bool:
    """Whether a torch.func transform such as vmap or grad is active, which custom kernels do not support."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.get_interpreter_stack())
