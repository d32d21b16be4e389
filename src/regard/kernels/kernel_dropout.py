# mypy: disable-error-code="no-untyped-def"
"""Dropout of attention weights inside a kernel.

The factor of a weight depends only on the seed and on the indices of its head, query and key. So all kernels
of the forward and the backward pass compute the same factor, whatever their tiles are.

Tested: under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["dropout_factors"]


@triton.jit
def dropout_factors(seed, dropout, both, rows, columns, queries, keys):
    """Return the dropout factors of a tile of weights, 0 or 1 / (1 - dropout), (ROWS, COLUMNS).

    seed: pointer to the seed.
    dropout: probability of 0.
    both: index of batch and head, in int64.
    rows, columns: indices of the queries and keys of the tile.
    """
    index = (both * queries + rows)[:, None] * keys + columns[None, :]
    return tl.where(tl.rand(tl.load(seed), index) >= dropout, 1.0 / (1.0 - dropout), 0.0)
