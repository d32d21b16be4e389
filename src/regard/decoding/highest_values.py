"""Select the highest values of a row. Of equal values, the one with the lower index comes first."""

from __future__ import annotations

import torch
from torch import Tensor

ALL_ONES = 2**31 - 1

BLOCK, FEWEST_VALUES = 64, 2**15
"""On a CPU, the highest sums of tensors with at least FEWEST_VALUES are found in blocks of this size."""


def largest(values: Tensor) -> Tensor:
    """Return the index of the highest value of each row (B, N), the first of equal ones; NaN is highest.

    The same as values.argmax(-1). On a CPU, NumPy finds it in a tenth of the time.

    >>> largest(torch.tensor([[0.5, 2.0, 2.0]]))
    tensor([1])
    """
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(-1))
    return values.argmax(-1)


def highest(values: Tensor, count: int, order: Tensor | None = None) -> Tensor:
    """Return the indices of the `count` highest values of each row in descending order, (B, count).

    values: (B, N), float32, N >= count. NaN counts as higher than any number but inf. Of equal values, the
        one with the lower index comes first, which topk() does not guarantee. On a CPU, values of -inf after
        others are in any order: they are forbidden tokens and unused beams, which no search returns.
    order: (B, N), different integers from 0 to 2**31 - 1, that replace the indices in comparisons of equal
        values.

    >>> highest(torch.tensor([[0.5, 2.0, 0.5, 0.1]]), 2)
    tensor([[1, 0]])
    """
    if values.device.type == "cpu":
        best, indices = values.topk(min(count + 1, values.shape[1]))
        if not _some_equal(best):
            return indices[:, :count]
    if order is None:
        order = torch.arange(values.shape[1], device=values.device)
    return sortable(values, order).topk(count).indices


def highest_sums(first: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest sums first[b, k] + values[b, k, v] for each b, and their indices k V + v.

    first: (B, K). values: (B, K, V), float32. Results: (B, count). For the order, see highest().

    On a CPU, only some blocks of large tensors are added and compared: those with the count + 1 highest
    maxima. The `count` highest sums are among them, because each of these blocks has a sum of at least the
    lowest of these maxima, and the other blocks have no higher one.
    """
    vocabulary = values.shape[2]
    blocks, rest = divmod(vocabulary, BLOCK)
    if values.device.type == "cpu" and values.numel() >= FEWEST_VALUES and blocks > count:
        blocked_BKNT = values[:, :, : blocks * BLOCK].view(*values.shape[:2], blocks, BLOCK)
        maxima_BKN = blocked_BKNT.amax(3).add_(first[:, :, None])
        largest_BC, chosen_BC = maxima_BKN.flatten(1).topk(count + 1)
        beam_BC, block_BC = chosen_BC // blocks, chosen_BC % blocks
        rows_B1 = torch.arange(len(values))[:, None]
        sums_BN = (blocked_BKNT[rows_B1, beam_BC, block_BC] + first.gather(1, beam_BC)[..., None]).flatten(1)
        first_BC = beam_BC * vocabulary + block_BC * BLOCK
        place_BN = (first_BC[..., None] + torch.arange(BLOCK)).flatten(1)
        if rest:  # the tokens after the last whole block
            tail_BR = (values[:, :, blocks * BLOCK :] + first[:, :, None]).flatten(1)
            beams_K1 = torch.arange(values.shape[1])[:, None]
            place_R = (beams_K1 * vocabulary + torch.arange(vocabulary - rest, vocabulary)).flatten()
            sums_BN = torch.cat((sums_BN, tail_BR), 1)
            place_BN = torch.cat((place_BN, place_R.expand_as(tail_BR)), 1)
        at_BC = highest(sums_BN, count, place_BN)
        best_BC, lowest_B1 = sums_BN.gather(1, at_BC), largest_BC[:, -1:]
        # A sum equal to the lowest maximum may be in another block too, and then the lower index counts.
        above_B1 = best_BC[:, -1:] > lowest_B1
        if above_B1.all() or (above_B1 | (lowest_B1 == -torch.inf) & (best_BC[:, :1] > -torch.inf)).all():
            return best_BC, place_BN.gather(1, at_BC)
    sums_BN = (first[:, :, None] + values).flatten(1)
    place_BC = highest(sums_BN, count)
    return sums_BN.gather(1, place_BC), place_BC


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


def _some_equal(descending: Tensor) -> bool:
    """Whether some adjacent values of a row (B, N) are equal; -inf counts only in rows of nothing else."""
    equal = descending[:, 1:] == descending[:, :-1]
    if not equal.any():  # mostly
        return False
    first, later = descending[:, :1], descending[:, 1:]
    return bool((equal & ((later > -torch.inf) | (first == -torch.inf))).any())
