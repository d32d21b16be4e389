"""The k largest weights of each query as a custom operator, which torch.compile does not trace into."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.kernels.forward_pass import Sight, in_eights, in_rows, precision_of, steps
from regard.kernels.inner_look_pass import Tiles, broadcast_steps
from regard.kernels.inner_top import inner_top_kernel

__all__ = ["inner_top"]


def tiles_of(width: int, dtype: torch.dtype) -> Tiles:
    """Return the launch parameters for a head size and a dtype."""
    if dtype == torch.float32 and width > 64:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 32, 4, 1)


@torch.library.custom_op(
    "regard::inner_top",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor lse, Tensor? bias, Tensor? table, Tensor? lengths, "
    "Tensor? document_of_query, Tensor? document_of_key, SymInt start, SymInt? left, SymInt? right, "
    "float scale, float cap, float bias_scale, SymInt top) -> (Tensor weights, Tensor keys)",
)
def inner_top(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    cap: float,
    bias_scale: float,
    top: int,
) -> tuple[Tensor, Tensor]:
    """Return the `top` largest weights of each query, largest first, and their keys, (B, H, T, top).

    If a query sees fewer than `top` keys, the rest has weight 0 and key -1.

    top: k, at least 1. The time grows with k. For the other arguments, see inner_look().
    """
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    tiles = tiles_of(width, query.dtype)
    weights = query.new_empty((batch, heads, queries, top), dtype=torch.float32)
    chosen = torch.empty_like(weights, dtype=torch.int64)
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        inner_top_kernel[(-(-queries // tiles.rows), batch * heads)](
            query,
            key,
            lse,
            query if bias is None else bias,
            query if table is None else table.view(torch.uint8),
            weights,
            chosen,
            **sight.whole(query),
            **steps("query", query),
            **steps("key", key),
            **broadcast_steps("bias", bias, query, keys),
            **broadcast_steps("table", table, query, keys),
            scale=scale,
            cap=cap,
            bias_scale=bias_scale,
            heads=heads,
            groups=heads // key_heads,
            queries=queries,
            keys=keys,
            width=width,
            top=top,
            CAP=cap > 0,
            BIAS=bias is not None,
            TABLE=table is not None,
            KEPT=1 << (top - 1).bit_length(),
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            WIDTH=max(16, 1 << (width - 1).bit_length()),
            EIGHTS=in_eights(query, key),
            PRECISION=precision_of(query),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return weights, chosen


@inner_top.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weights = query.new_empty((*query.shape[:3], rest[-1]), dtype=torch.float32)
    return weights, torch.empty_like(weights, dtype=torch.int64)
