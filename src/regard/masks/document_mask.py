"""Whether a number is met again within an interval, found by sorting instead of asking every pair."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["met"]


def met(ids: Tensor, others: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """For each of ids, (B, N), whether one of others, (B, M), is the same and stands from low to high.

    >>> one, two = torch.tensor([[7, 7, 3]]), torch.tensor([[3, 7, 3, 9]])
    >>> met(one, two, torch.tensor([0, 2, 1]), torch.tensor([1, 3, 2]))
    tensor([[ True, False,  True]])
    """
    count = others.shape[1]
    if not count:
        return torch.zeros_like(ids, dtype=torch.bool)
    ordered, place = others.contiguous().sort(dim=1, stable=True)
    # Where each number begins in order stands for the number, and what it is met at comes after it.
    numbers = torch.searchsorted(ordered, ordered) * (count + 1) + place
    begins = torch.searchsorted(ordered, ids.contiguous())
    there = ordered.gather(1, begins.clamp_max(count - 1)) == ids
    nearest = torch.searchsorted(numbers, begins * (count + 1) + low.clamp(0, count))
    found = numbers.gather(1, nearest.clamp_max(count - 1))
    return there & (nearest < count) & (found <= begins * (count + 1) + high.clamp(-1, count - 1))
