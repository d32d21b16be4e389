"""occurs_between(): whether an id occurs in an interval of other ids; used for document masks.

It sorts the ids, which needs less memory than comparing every pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["occurs_between"]


def occurs_between(ids: Tensor, others: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether ids[b, n] equals others[b, m] for some index m with low[n] <= m <= high[n].

    ids: (B, N), others: (B, M), low, high: (N,). Returns a bool tensor (B, N).

    >>> ids, others = torch.tensor([[7, 7, 3]]), torch.tensor([[3, 7, 3, 9]])
    >>> occurs_between(ids, others, torch.tensor([0, 2, 1]), torch.tensor([1, 3, 2]))
    tensor([[ True, False,  True]])
    """
    count = others.shape[1]
    if not count:
        return torch.zeros_like(ids, dtype=torch.bool)
    ordered, index = others.contiguous().sort(dim=1, stable=True)
    # One integer (code) per element of `others`, in ascending order: rank * (count + 1) + index. The rank is
    # the place of the first equal value in `ordered`. So the smallest code that is not less than
    # rank * (count + 1) + low belongs to the first equal value with an index >= low, if there is one.
    codes = torch.searchsorted(ordered, ordered) * (count + 1) + index
    rank = torch.searchsorted(ordered, ids.contiguous())
    exists = ordered.gather(1, rank.clamp_max(count - 1)) == ids
    nearest = torch.searchsorted(codes, rank * (count + 1) + low.clamp(0, count))
    code = codes.gather(1, nearest.clamp_max(count - 1))
    return exists & (nearest < count) & (code <= rank * (count + 1) + high.clamp(-1, count - 1))
