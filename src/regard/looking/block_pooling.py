"""Block pooling: the mean weight of each block of n queries and n keys, for Look(pooled=n)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["block_means", "block_sums"]


def block_sums(weights: Tensor, size: int, first_row: int = 0, first_column: int = 0) -> Tensor:
    """Return the sum of the weights in each block of size x size, (B, H, blocks, blocks).

    weights: (B, H, rows, columns), a part of the whole matrix of weights.
    first_row, first_column: where this part begins in the whole matrix. The blocks are those of the whole
        matrix, so the first blocks of the result may be covered only partly.

    >>> block_sums(torch.ones(1, 1, 3, 4), 2)[0, 0]
    tensor([[4., 4.],
            [2., 2.]])
    >>> block_sums(torch.ones(1, 1, 1, 4), 2, first_column=1)[0, 0]  # columns 1 to 4 of the matrix
    tensor([[1., 2., 1.]])
    """
    rows, columns = weights.shape[-2:]
    above, left = first_row % size, first_column % size
    below, right = -(above + rows) % size, -(left + columns) % size
    padded = functional.pad(weights, (left, right, above, below))
    return padded.unflatten(-1, (-1, size)).sum(-1).unflatten(-2, (-1, size)).sum(-2)


def block_means(sums: Tensor, sizes: Sequence[int], size: int) -> Tensor:
    """Divide the sum of each block by the number of weights in the block.

    sums: (B, H, blocks, blocks), from block_sums() for the whole matrix.
    sizes: the sizes of the whole matrix of weights, (..., T, S).

    >>> block_means(torch.tensor([[4.0, 4.0], [2.0, 2.0]]), (3, 4), 2)
    tensor([[1., 1.],
            [1., 1.]])
    """
    heights, widths = (
        (total - torch.arange(0, total, size, device=sums.device)).clamp(max=size) for total in sizes[-2:]
    )
    return sums / (heights[:, None] * widths)
