"""Select the highest values of a row. If values are equal, the one with the lower order comes first."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["highest_in_order", "sortable"]

ALL_ONES = 2**31 - 1


def highest_in_order(values: Tensor, order: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` highest values of each row in descending order, (B, count).

    values: (B, N), float32. NaN counts as higher than any number but inf.
    order: (B, N), integers from 0 to 2**31 - 1, different in each row. If values are equal, the one with the
        lower order comes first.

    The function combines value and order to one integer: no two are equal, so topk() has only one answer. On
    a CPU, this is only done if values are equal.
    """
    if values.device.type == "cpu":
        highest, indices = values.topk(min(count + 1, values.shape[1]))
        if not (highest[:, 1:] == highest[:, :-1]).any():
            return indices[:, :count]
    return sortable(values, order).topk(count).indices


def sortable(values: Tensor, order: Tensor) -> Tensor:
    """Return int64 numbers in the order of the values; for equal values, in the reverse of `order`."""
    # Adding 0.0 turns -0.0 to 0.0, which is equal but has another bit pattern.
    number = torch.where(values.isnan(), torch.inf, values) + 0.0
    bits = number.view(torch.int32)
    # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
    ascending = bits ^ ((bits >> 31) & ALL_ONES)
    return (ascending.long() << 32) | (ALL_ONES - order)
