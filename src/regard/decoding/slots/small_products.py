"""small_matmul(): matrix products of a few rows on a CPU, in NumPy, which starts them faster than PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["MOST_PRODUCTS", "small_matmul"]

Array = np.ndarray[Any, Any]

MOST_PRODUCTS, MOST_ROW_PRODUCTS = 2**18, 9216
"""The largest number of multiplications for which small_matmul() uses NumPy, and the largest number for a
product with one row.

For larger products, OpenBLAS would start its own threads, which compete with those of PyTorch. It has a lower
limit for one row, so that larger products of one row are computed as products of two equal rows.
"""


def small_matmul(a: Array, b: Array, out: Array) -> None:
    """Write the matrix products of two arrays (B, H, K, N) and (B, H, N, M) to `out`."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if rows == 1 and inner * columns > MOST_ROW_PRODUCTS:
        twice = np.empty((*out.shape[:-2], 2, columns), out.dtype)
        small_matmul(np.concatenate((a, a), -2), b, twice)
        out[...] = twice[..., :1, :]
    elif rows * inner * columns <= MOST_PRODUCTS:
        np.matmul(a, b, out=out)
    else:  # one slot after another, because PyTorch would copy strided arrays of several slots
        for result_HKM, *factors in zip(out, a, b, strict=True):
            result_HKM[...] = torch.bmm(*map(torch.from_numpy, factors)).numpy()
