"""Copies of weights in half precision, made by one kernel for a whole model instead of one for each layer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["half_copy", "half_weights", "joint_copy"]

ALIGNMENT = 8
"""Only parameters whose sizes are multiples of this number are copied, so that all copies are aligned."""

_local = threading.local()


@contextmanager
def half_weights(modules: Sequence[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Copy the weights and biases of linear layers to `dtype`.

    Inside the `with` block, joint_copy() returns these copies.

    modules: modules whose direct children are the linear layers. The copies of the weights of one module are
        adjacent in memory, in the order of its children, and so are the copies of the biases.

    >>> module = nn.Sequential(nn.Linear(8, 16), nn.Linear(8, 8))
    >>> weights = [each.weight for each in module]
    >>> with half_weights([module], torch.bfloat16):
    ...     joint_copy(weights).shape, joint_copy([nn.Linear(8, 8).weight]) is None
    (torch.Size([24, 8]), True)
    """
    tensors = list(_parameters(modules))
    sizes = [tensor.numel() for tensor in tensors]
    before = getattr(_local, "copies", None)
    if tensors:
        flat = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device)
        copies = [part.view_as(each) for part, each in zip(flat.split(sizes), tensors, strict=True)]
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
        _local.copies = dict(zip(map(id, tensors), copies, strict=True))
    try:
        yield
    finally:
        _local.copies = before


def joint_copy(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the copies of weights (O, I) or biases (O,) as one tensor, or None if there are none."""
    known = getattr(_local, "copies", None)
    if not known or any(id(each) not in known for each in tensors):
        return None
    copies = [known[id(each)] for each in tensors]
    first, place = copies[0], copies[0].storage_offset()
    for each in copies:
        if each.storage_offset() != place or each.shape[1:] != first.shape[1:]:
            return None
        place += each.numel()
    return first.as_strided((sum(map(len, copies)), *first.shape[1:]), first.stride())


def half_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight or bias in dtype: its copy from half_weights(), or a new one.

    >>> half_copy(torch.ones(2), torch.bfloat16).dtype
    torch.bfloat16
    """
    copy = joint_copy([tensor])
    return tensor.to(dtype) if copy is None or copy.dtype != dtype else copy


def _parameters(modules: Sequence[nn.Module]) -> Iterator[Tensor]:
    """Yield the weights, then the biases of the linear layers of each module, each parameter once."""
    seen = set[int]()
    for module in modules:
        layers = [each for each in module.children() if type(each) is nn.Linear]
        tensors = [each.weight for each in layers] + [each.bias for each in layers if each.bias is not None]
        if any(tensor.dtype != torch.float32 for tensor in tensors):
            continue
        if any(size % ALIGNMENT for tensor in tensors for size in tensor.shape):
            continue
        for tensor in tensors:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor
