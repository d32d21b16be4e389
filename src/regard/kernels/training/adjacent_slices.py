"""Slices of one tensor: tensors that lie one after another in the rows of a larger tensor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["adjacent"]


def adjacent(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors are slices along the last dimension of one tensor, one after another.

    >>> import torch
    >>> whole = torch.zeros(2, 6)
    >>> adjacent([whole[:, :2], whole[:, 2:]]), adjacent([whole[:, 2:], whole[:, :2]])
    (True, False)
    """
    first, place = tensors[0], tensors[0].storage_offset()
    storage = first.untyped_storage().data_ptr()
    for each in tensors:
        alike = each.shape[:-1] == first.shape[:-1] and each.stride() == first.stride()
        if not alike or each.dtype != first.dtype or each.untyped_storage().data_ptr() != storage:
            return False
        if each.storage_offset() != place:
            return False
        place += each.shape[-1]
    whole = place - first.storage_offset()
    return first.stride(-1) == 1 and (first.dim() < 2 or first.stride(-2) >= whole)
