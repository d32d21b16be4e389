"""occurs_between(): find out whether an id occurs in a slice of a tensor of ids, for document masks.

The function sorts the ids. This needs less memory than comparing every pair of ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["occurs_between"]


def occurs_between(ids: Tensor, others: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return whether ids[b, n] equals others[b, m] for some index m with low[n] <= m <= high[n].

    ids: (B, N).
    others: (B, M).
    low, high: (N,).

    Returns a bool tensor (B, N).

    In this example, the three ids are looked up in the slices [3, 7], [3, 9] and [7, 3] of `others`.

    >>> ids, others = torch.tensor([[7, 7, 3]]), torch.tensor([[3, 7, 3, 9]])
    >>> occurs_between(ids, others, torch.tensor([0, 2, 1]), torch.tensor([1, 3, 2]))
    tensor([[ True, False,  True]])
    """
    count = others.shape[1]
    if not count:
        return torch.zeros_like(ids, dtype=torch.bool)
    ordered, index = others.contiguous().sort(dim=1, stable=True)
    # Each element of `others` gets an integer code, rank * (count + 1) + index. The rank of an element is the
    # place in `ordered` where its value first occurs, so equal values have the same rank. The codes are
    # sorted by value, then by index. For an id, find the smallest code >= (rank of the id) * (count + 1) +
    # low. If the id occurs at an index >= low, this code belongs to its first occurrence there.
    codes = torch.searchsorted(ordered, ordered) * (count + 1) + index
    rank = torch.searchsorted(ordered, ids.contiguous())
    exists = ordered.gather(1, rank.clamp_max(count - 1)) == ids
    nearest = torch.searchsorted(codes, rank * (count + 1) + low.clamp(0, count))
    code = codes.gather(1, nearest.clamp_max(count - 1))
    return exists & (nearest < count) & (code <= rank * (count + 1) + high.clamp(-1, count - 1))
