# mypy: disable-error-code="no-untyped-def"
"""Embedding, residual connection and layer normalisation of one decoding step, a program for each row.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

__all__ = ["add_and_normalize", "embed_and_normalize"]

WARPS = 1
"""Number of warps of a program."""


@triton.jit
def normalized(x, weight, bias, columns, width, epsilon):
    """Return LayerNorm(x) for one row x, which is 0 outside `width` columns."""
    inside = columns < width
    mean = tl.sum(x, 0) / width
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / width + epsilon)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * scale * factor + tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def embed_norm_kernel(
    tokens, table, places, position, x, normed, weight, bias, beams, width, factor, epsilon,
    PLACES: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute x = factor * embedding + position embedding, and LayerNorm(x), for one row.

    tokens: reads (rows,). table: reads (V, width). places: reads (L, width), the position embeddings.
    position: reads (rows / beams,), the position of each slot.
    x, normed: write (rows, width).
    PLACES, NORM: whether there are position embeddings, and whether `normed` is computed.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    token = tl.load(tokens + row)
    value = tl.load(table + token * width + columns, mask=inside, other=0.0).to(tl.float32) * factor
    value = value.to(x.dtype.element_ty).to(tl.float32)  # round as PyTorch does
    if PLACES:
        place = tl.load(position + row // beams)
        value += tl.load(places + place * width + columns, mask=inside, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    tl.store(x + row * width + columns, value.to(x.dtype.element_ty), mask=inside)
    if NORM:
        result = normalized(value, weight, bias, columns, width, epsilon)
        tl.store(normed + row * width + columns, result.to(x.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_kernel(
    x, change, total, normed, weight, bias, width, epsilon, SUM: tl.constexpr, WIDTH: tl.constexpr
):
    """Compute total = x + change, and LayerNorm(total), for one row. All tensors have shape (rows, width).

    SUM: whether `total` is written.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    at = row * width + columns
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(change + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(x.dtype.element_ty).to(tl.float32)  # round as PyTorch does
    if SUM:
        tl.store(total + at, value.to(x.dtype.element_ty), mask=inside)
    result = normalized(value, weight, bias, columns, width, epsilon)
    tl.store(normed + at, result.to(x.dtype.element_ty), mask=inside)


def embed_and_normalize(
    tokens: Tensor,
    table: Tensor,
    factor: float,
    places: Tensor | None,
    position: Tensor,
    norm: nn.LayerNorm | None,
) -> tuple[Tensor, Tensor]:
    """Return x = factor * embedding + position embedding, and LayerNorm(x), both (rows, M).

    tokens: (slots, beams), token ids; rows = slots * beams.
    table: (V, M), the embeddings.
    places: (L, M), the position embeddings, or None.
    position: (slots,), the position of each slot.
    norm: if it is None, the second result is x too.
    """
    rows, width = tokens.numel(), table.shape[1]
    x = table.new_empty(rows, width)
    normed = x if norm is None else torch.empty_like(x)
    embed_norm_kernel[(rows,)](
        tokens, table, table if places is None else places, position, x, normed,
        table if norm is None else norm.weight, table if norm is None else norm.bias,
        tokens.shape[1], width, factor, 0.0 if norm is None else norm.eps,
        PLACES=places is not None, NORM=norm is not None, WIDTH=triton.next_power_of_2(width),
        num_warps=WARPS,
    )  # fmt: skip
    return x, normed


def add_and_normalize(x: Tensor, change: Tensor, norm: nn.LayerNorm, keep: bool) -> tuple[Tensor, Tensor]:
    """Return x + change, and LayerNorm(x + change). All tensors have shape (rows, M) and are contiguous.

    keep: whether the sum is needed. If not, the first result is the second one.
    """
    rows, width = x.shape
    normed = torch.empty_like(x)
    total = torch.empty_like(x) if keep else normed
    add_norm_kernel[(rows,)](
        x, change, total, normed, norm.weight, norm.bias, width, norm.eps,
        SUM=keep, WIDTH=triton.next_power_of_2(width), num_warps=WARPS,
    )  # fmt: skip
    return total, normed
