"""readable(): whether Python code may branch on the values of a tensor, such as the lengths of a mask."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PLAIN", "readable"]

PLAIN = (Tensor, torch.nn.Parameter)
"""The types of tensors that are no subclass with a meaning of its own, such as FakeTensor."""


def readable(tensor: Tensor) -> bool:
    """Whether Python code may branch on the values of this tensor.

    It may not if this would wait for a device, or if the tensor has no values of its own: inside
    torch.compile and other tracers, and inside torch.func transforms such as vmap.

    >>> readable(torch.tensor([3, 2])), readable(torch.empty(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or type(tensor) not in PLAIN:
        return False
    if torch._C._functorch.get_interpreter_stack() or torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._get_tracing_state() is None
