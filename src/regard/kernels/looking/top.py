"""The k largest weights of each query as a custom operator, which torch.compile does not trace into."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.additive.forward import Sight, in_eights, in_rows, precision_of, steps
from regard.kernels.looking.candidate_lists import (
    PACKED,
    SCORES,
    collected_assembly,
    collected_constraints,
    listing_assembly,
    listing_constraints,
)
from regard.kernels.looking.candidates import inner_candidates_kernel, inner_sort_kernel
from regard.kernels.looking.measures import (
    ARGUMENTS,
    QUADS,
    Tiles,
    broadcast_steps,
    has_tma,
    key_block,
    on_hopper,
    slots_of,
)
from regard.kernels.looking.measures import tiles_of as look_tiles_of
from regard.kernels.looking.top_kernel import inner_top_kernel

__all__ = ["inner_top", "needs_maxima", "run_inner_top"]

MOST_KEYS = 1 << 25
"""Maximum number of keys of inner_candidates_kernel, which stores key * ROWS + query in 32 bits."""

SORTED = 32
"""Number of queries whose lists one program sorts, one query for each thread."""


def tiles_of(width: int, dtype: torch.dtype) -> Tiles:
    """Return the launch parameters of inner_top_kernel for a head size and a dtype."""
    if dtype == torch.float32 and width > 64:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 32, 4, 1)


def listing_tiles_of(width: int, dtype: torch.dtype) -> Tiles:
    """Return the launch parameters of inner_candidates_kernel; `rows` is that of tiles_of()."""
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2) if width > 64 else Tiles(64, 64, 4, 2)
    if width > 128:
        return Tiles(64, 64, 4, 2)
    return Tiles(64, 64, 4, 2 if width > 64 else 3, registers=128)


def needs_maxima(query: Tensor, keys: int, top: int) -> bool:
    """Whether inner_top() is faster with the maxima of inner_look(): if there are at least 2 k slots."""
    return slots_of(look_tiles_of(query.shape[3], query.dtype)) >= 2 * top and keys <= MOST_KEYS


def run_inner_top(
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
    maxima: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the `top` largest weights of each query, largest first, and their keys, (B, H, T, top).

    If a query sees fewer than `top` keys, the rest has weight 0 and key -1.

    top: k, at least 1. The time grows with k.
    maxima: (B, H, T, slots), from inner_look(); see needs_maxima(). None to keep lists of the largest scores
        instead, which is slower. For the other arguments, see inner_look().
    """
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    tiles = tiles_of(width, query.dtype)
    weights = query.new_empty((batch, heads, queries, top), dtype=torch.float32)
    chosen = torch.empty_like(weights, dtype=torch.int64)
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    bias_and_table = query if bias is None else bias, query if table is None else table.view(torch.uint8)
    options = {
        **sight.whole(query), **steps("query", query), **steps("key", key),
        **broadcast_steps("bias", bias, query, keys), **broadcast_steps("table", table, query, keys),
        "scale": scale, "cap": cap, "bias_scale": bias_scale, "heads": heads, "groups": heads // key_heads,
        "queries": queries, "keys": keys, "width": width, "top": top, "CAP": cap > 0,
        "BIAS": bias is not None, "TABLE": table is not None, "WIDTH": max(16, 1 << (width - 1).bit_length()),
        "EIGHTS": in_eights(query, key), "PRECISION": precision_of(query),
    }  # fmt: skip
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        records, listed = chosen, 0
        if maxima is not None:
            records = _listed(query, key, lse, bias_and_table, maxima, weights, chosen, options)
            listed = records.shape[3] - 1
        inner_top_kernel[(-(-queries // tiles.rows), batch * heads)](
            query, key, lse, *bias_and_table, weights, chosen, records, **options,
            KEPT=1 << (top - 1).bit_length(), LISTED=listed, ROWS=tiles.rows, COLUMNS=tiles.columns,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return weights, chosen


inner_top = torch.library.custom_op(
    "regard::inner_top",
    mutates_args=(),
    schema=f"({ARGUMENTS}, SymInt top, Tensor? maxima) -> (Tensor weights, Tensor keys)",
)(run_inner_top)
"""run_inner_top() as an operator, which torch.compile does not trace into."""


@inner_top.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weights = query.new_empty((*query.shape[:3], rest[-2]), dtype=torch.float32)
    return weights, torch.empty_like(weights, dtype=torch.int64)


def _listed(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    bias_and_table: tuple[Tensor, Tensor],
    maxima: Tensor,
    weights: Tensor,
    chosen: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """Compute `weights` and `chosen` with candidates.py, and return its records.

    They are wrong for queries whose list in the records was too short.
    """
    (batch, heads, queries, width), top = query.shape, options["top"]
    tiles = listing_tiles_of(width, query.dtype)
    listed = max(16, 4 << (top - 1).bit_length())
    count = -(-queries // tiles.rows)
    held, threads = max(8, listed // 4), 32 * tiles.warps
    records = query.new_empty((batch, heads, count, 1 + listed, tiles.rows), dtype=torch.int64)
    block = key_block(key, tiles) if width == options["WIDTH"] and has_tma(query.device) else None
    loads = options["BIAS"] or options["TABLE"] or options["DOCUMENTS"]
    collected = block is not None and not loads and on_hopper(query.device) and _in_one_warp_group(tiles)
    shape = (0,) if collected else (batch, heads, count, 1 + held, threads)
    lists = query.new_empty(shape, dtype=torch.int64)
    inner_candidates_kernel[(count, batch * heads)](
        query, key, key if block is None else block, lse, *bias_and_table, maxima, records, lists, **options,
        SLOTS=maxima.shape[3], LISTED=listed, HELD=held, THREADS=threads,
        ROWS=tiles.rows, COLUMNS=tiles.columns,
        WHOLE=width == options["WIDTH"], TMA=block is not None,
        **_assembly(tiles, listed, threads, held, collected),
        num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers,
    )  # fmt: skip
    inner_sort_kernel[(count * tiles.rows // SORTED, batch * heads)](
        records, lse, weights, chosen, queries, top, count,
        LISTED=listed, KEPT=1 << (top - 1).bit_length(), ROWS=tiles.rows, SORTED=SORTED, num_warps=1,
    )  # fmt: skip
    return records


def _in_one_warp_group(tiles: Tiles) -> bool:
    """Whether one warp group computes 64 keys x 64 queries, for which collected_assembly() is written."""
    return (tiles.warps, tiles.groups, tiles.columns, tiles.rows) == (*QUADS, 64)


def _assembly(tiles: Tiles, listed: int, threads: int, held: int, collected: bool) -> dict[str, Any]:
    """Return the arguments of inner_candidates_kernel for inline assembly."""
    if interpreting():
        return {"PACK": 1, "CONSTRAINTS": "", "COLLECTED": False, "ASSEMBLY": ""}
    packed = SCORES if collected else min(PACKED, tiles.rows * tiles.columns // threads)
    constraints = collected_constraints() if collected else listing_constraints(packed)
    text = collected_assembly(tiles.rows, listed)
    if not collected:
        text = listing_assembly(tiles.rows, listed, threads, held, packed)
    return {"PACK": packed, "CONSTRAINTS": constraints, "COLLECTED": collected, "ASSEMBLY": text}
