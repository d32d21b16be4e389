"""Select the highest values of a row. Of equal values, the one with the lower index comes first."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["highest", "sortable"]

ALL_ONES = 2**31 - 1

BLOCK, FEWEST_VALUES = 64, 2**15
"""On a CPU, the highest values of tensors with at least FEWEST_VALUES are found in blocks of this size."""


def highest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` highest values of each row in descending order, (B, count).

    values: (B, N), float32, N >= count. NaN counts as higher than any number but inf. Of equal values, the
        one with the lower index comes first, which topk() does not guarantee.

    >>> highest(torch.tensor([[0.5, 2.0, 0.5, 0.1]]), 2)
    tensor([[1, 0]])
    """
    if values.device.type == "cpu":
        best, indices = _topk(values, min(count + 1, values.shape[1]))
        if not (best[:, 1:] == best[:, :-1]).any():
            return indices[:, :count]
    order = torch.arange(values.shape[1], device=values.device)
    return sortable(values, order).topk(count).indices


def sortable(values: Tensor, order: Tensor) -> Tensor:
    """Return int64 numbers in the order of float32 values; for equal values, in the reverse of `order`.

    order: integers from 0 to 2**31 - 1. If they differ, the results differ, and topk() has only one answer.
    """
    # Adding 0.0 turns -0.0 to 0.0, which is equal but has another bit pattern.
    number = torch.where(values.isnan(), torch.inf, values) + 0.0
    bits = number.view(torch.int32)
    # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
    ascending = bits ^ ((bits >> 31) & ALL_ONES)
    return (ascending.long() << 32) | (ALL_ONES - order)


def _topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values.topk(count) on a CPU, faster for large tensors; indices of equal values may differ.

    The `count` highest values of a row are in the `count` blocks with the highest maxima.
    """
    rows, size = values.shape
    blocks = size // BLOCK
    if values.numel() < FEWEST_VALUES or blocks < 4 * count:
        best, indices = values.topk(count)
        return best, indices
    blocked = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    block_BC1 = blocked.amax(2).topk(count).indices[..., None]
    picked = blocked.gather(1, block_BC1.expand(rows, count, BLOCK)).flatten(1)
    best, place = torch.cat((picked, values[:, blocks * BLOCK :]), 1).topk(count)
    inside = block_BC1[..., 0].gather(1, (place // BLOCK).clamp(max=count - 1)) * BLOCK + place % BLOCK
    return best, torch.where(place < count * BLOCK, inside, place + (blocks - count) * BLOCK)
