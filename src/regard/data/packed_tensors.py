"""The tensors of a batch, and copies of them in one buffer, which one copy moves to a device.

A copy to a GPU takes several microseconds, even of a few bytes, and a batch has several small tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16
"""The offset of each tensor in the buffer is a multiple of this number of bytes."""


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in order. A batch is a tensor, or a tuple or dataclass of batches.

    >>> [each.shape for each in tensors_in((torch.zeros(2), None, (torch.zeros(3, 1),)))]
    [torch.Size([2]), torch.Size([3, 1])]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for each in batch:
            yield from tensors_in(each)
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from tensors_in(getattr(batch, field.name))


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return a copy of a batch with function(tensor) for each tensor, in the order of tensors_in()."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple):
        parts = [map_tensors(function, each) for each in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if is_dataclass(batch) and not isinstance(batch, type):
        changed = {each.name: map_tensors(function, getattr(batch, each.name)) for each in fields(batch)}
        return replace(batch, **changed)
    return batch


def pack(tensors: Sequence[Tensor], pin_memory: bool = False) -> list[Tensor]:
    """Return copies of the tensors, all on one device, that are parts of one new buffer.

    pin_memory: whether the buffer is in pinned memory. Then the tensors must be on the CPU.

    >>> first, second = pack([torch.tensor([1, 2]), torch.tensor([[True]])])
    >>> first, second, buffer_of([first, second]).shape
    (tensor([1, 2]), tensor([[True]]), torch.Size([32]))
    """
    device = tensors[0].device if tensors else None
    buffer = torch.empty(_offsets(tensors)[-1], dtype=torch.uint8, device=device, pin_memory=pin_memory)
    parts = parts_of(buffer, tensors)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return parts


def parts_of(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a buffer with the shapes and dtypes of the tensors, in the layout of pack()."""
    offsets = _offsets(tensors)
    return [
        buffer[offset : offset + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=False)
    ]


def buffer_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the buffer of tensors that pack() or parts_of() returned; None if they are other tensors."""
    if len(tensors) < 2:
        return None
    storage, offsets = tensors[0].untyped_storage(), _offsets(tensors)
    if storage.nbytes() != offsets[-1]:
        return None
    for tensor, offset in zip(tensors, offsets, strict=False):
        same = tensor.untyped_storage().data_ptr() == storage.data_ptr() and tensor.is_contiguous()
        if not same or tensor.storage_offset() * tensor.element_size() != offset:
            return None
    return torch.empty(0, dtype=torch.uint8, device=tensors[0].device).set_(storage)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to the target of the same shape and dtype, without waiting for the copies.

    If the targets have one buffer and the sources have another, one copy is enough.
    """
    buffer, source = buffer_of(targets), buffer_of(sources)
    if buffer is not None and source is not None:
        buffer.copy_(source, non_blocking=True)
        return
    for target, tensor in zip(targets, sources, strict=True):
        target.copy_(tensor, non_blocking=True)


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return the offset of each tensor in the buffer in bytes, and the size of the buffer."""
    offsets = [0]
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets
