# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: the k largest weights of each query and their keys, without T x S.

A program keeps a list of the largest scores of each of its queries, and visits the keys tile by tile. While a
query has a score in the tile that is larger than the smallest score in its list, this score replaces the
smallest one, and is removed from the tile. This happens at most k times per tile, and rarely after the first
tiles: of n scores in random order, about k ln(n / k) enter the list. The result is exact.

inner_top is run_inner_top() as a custom operator, which torch.compile does not trace into.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import on_device
from regard.kernels.additive.forward import Sight
from regard.kernels.launch import in_eights, in_rows, precision_of, steps
from regard.kernels.looking import ARGUMENTS, Weights
from regard.kernels.looking.measures import Tiles, broadcast_steps
from regard.kernels.looking.scores import HIDDEN, NO_KEY, capped
from regard.kernels.mask import end_of, key_tiles, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_top", "inner_top_kernel", "run_inner_top"]

FULL = tl.constexpr(1e30)
"""Greater than every score. It fills the places of a list that are not used: KEPT can be larger than k."""


@triton.jit
def _merged(scores, columns, largest, largest_keys, KEPT: tl.constexpr):
    """Return the lists of the largest scores of each query and their keys, after one more tile of scores.

    scores: (ROWS, COLUMNS), of one tile, with HIDDEN for hidden keys.
    columns: (COLUMNS,), the indices of the keys of the tile.
    largest, largest_keys: (ROWS, KEPT), the lists so far. Of equal scores, the key with the smallest index is
        kept, because keys are visited in order.
    """
    places = tl.arange(0, KEPT)[None, :]
    smallest = -tl.max(-largest, 1)
    best = tl.max(scores, 1)
    changes = tl.max((best > smallest).to(tl.int32), 0)
    while changes > 0:
        entering = best > smallest
        chosen = tl.min(tl.where(scores == best[:, None], columns[None, :], NO_KEY), 1)
        place = tl.min(tl.where(largest == smallest[:, None], places, KEPT), 1)
        replaced = (places == place[:, None]) & entering[:, None]
        largest = tl.where(replaced, best[:, None], largest)
        largest_keys = tl.where(replaced, chosen[:, None], largest_keys)
        scores = tl.where(columns[None, :] == chosen[:, None], HIDDEN, scores)
        smallest = -tl.max(-largest, 1)
        best = tl.max(scores, 1)
        changes = tl.max((best > smallest).to(tl.int32), 0)
    return largest, largest_keys


@triton.jit
def _with_tiles(
    largest, largest_keys, first, last, row, query, key, bias, table, document_of_query, document_of_key,
    start, left, right, scale, cap, bias_scale, queries, end, width, key_row, bias_row, bias_column,
    table_row, table_column,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr,
    BIAS: tl.constexpr, TABLE: tl.constexpr, MASKED: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Process the tiles of keys `first` to last - 1 for one tile of queries; return the new lists.

    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.
    """
    rows = row + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    for tile in range(first, last):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        keys_CD = tl.load(
            key + columns.to(tl.int64)[:, None] * key_row + channels[None, :],
            mask=(columns < end)[:, None] & (channels < width)[None, :], other=0.0,
        )  # fmt: skip
        scores = product(query, tl.trans(keys_CD), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION)
        if CAP:
            scores = capped(scores * scale, cap) * (bias_scale * LOG2E)
        else:
            scores = scores * (scale * bias_scale * LOG2E)
        inside = (rows < queries)[:, None] & (columns < end)[None, :]
        if BIAS:
            at = rows.to(tl.int64)[:, None] * bias_row + columns.to(tl.int64)[None, :] * bias_column
            scores += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32) * (bias_scale * LOG2E)
            scores = tl.maximum(scores, HIDDEN, propagate_nan=tl.PropagateNan.ALL)
        if MASKED:
            seen = visible(
                rows, columns, queries, end, start, left, right, document_of_query, document_of_key,
                LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            if TABLE:
                at = rows.to(tl.int64)[:, None] * table_row + columns.to(tl.int64)[None, :] * table_column
                seen = seen & (tl.load(table + at, mask=inside, other=0) != 0)
            scores = tl.where(seen, scores, HIDDEN)
        largest, largest_keys = _merged(scores, columns, largest, largest_keys, KEPT)
    return largest, largest_keys


@triton.jit
def _store_sorted(weights, keys, level, largest, largest_keys, rows, queries, top, KEPT: tl.constexpr):
    """Store the lists as weights and keys, largest weight first; of equal weights, smallest key first.

    weights, keys: (T, top), of one sequence and head.
    level: (ROWS,), lse * log2(e) of the queries. If it is NaN, all weights of the query are NaN.
    """
    places = tl.arange(0, KEPT)[None, :]
    there = (places < top) & (largest > HIDDEN)  # FULL in places that are not used
    known = tl.where(level == level, level, 0.0)
    found = tl.where(there, tl.exp2(largest - known[:, None]), -1.0)
    for rank in range(top):
        best = tl.max(found, 1)
        chosen = tl.min(tl.where(found == best[:, None], largest_keys, NO_KEY), 1)
        weight = tl.where(level == level, tl.where(best < 0.0, 0.0, best), level)
        at = rows.to(tl.int64) * top + rank
        tl.store(weights + at, weight, mask=rows < queries)
        tl.store(keys + at, tl.where(best < 0.0, -1, chosen).to(tl.int64), mask=rows < queries)
        found = tl.where(largest_keys == chosen[:, None], -1.0, found)


@triton.jit
def inner_top_kernel(
    query, key, lse, bias, table, weights, chosen, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, cap, bias_scale, heads,
    groups, queries, keys, width, top, query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row, table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, EIGHTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the `top` largest weights of each query in `weights` and their keys in `chosen`, (B, H, T, top).

    Launch grid: (tiles of queries, B H). With a causal mask, the last queries see the most keys, so they are
    processed first. If a query sees fewer than `top` keys, the rest has weight 0 and key -1.

    KEPT: a power of two, at least `top`. For the other arguments, see inner_look_kernel.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    both = tl.program_id(1)
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    both = both.to(tl.int64)
    query_tile = tl.num_programs(0) - 1 - tl.program_id(0)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head // groups * key_head
    bias += batch * bias_batch + head * bias_head
    table += batch * table_batch + head * table_head
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    row = query_tile * ROWS
    rows = row + tl.arange(0, ROWS)
    channels = tl.arange(0, WIDTH)
    queries_RD = tl.load(
        query + rows.to(tl.int64)[:, None] * query_row + channels[None, :],
        mask=(rows < queries)[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, DOCUMENTS or TABLE, ROWS, COLUMNS
    )
    unused = (tl.arange(0, KEPT) >= top)[None, :] & (rows >= 0)[:, None]
    largest = tl.where(unused, FULL, HIDDEN)
    largest_keys = tl.full([ROWS, KEPT], -1, tl.int32)
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        one, end_of_part = first, full_first
        if part == 1:
            one, end_of_part = full_first, full_last
        if part == 2:
            one, end_of_part = full_last, last
        if (part == 0 and LEFT) or (part == 1 and not (DOCUMENTS or TABLE)) or part == 2:
            largest, largest_keys = _with_tiles(
                largest, largest_keys, one, end_of_part, row, queries_RD, key, bias, table,
                document_of_query, document_of_key, start, left, right, scale, cap, bias_scale, queries, end,
                width, key_row, bias_row, bias_column, table_row, table_column, LEFT, RIGHT, DOCUMENTS, CAP,
                BIAS, TABLE, part != 1, KEPT, ROWS, COLUMNS, WIDTH, PRECISION,
            )  # fmt: skip
    sums = tl.load(lse + both * queries + rows, mask=rows < queries, other=float("-inf"))
    level = tl.where(sums == float("-inf"), FULL, sums * LOG2E)
    _store_sorted(
        weights + both * queries * top, chosen + both * queries * top, level, largest, largest_keys, rows,
        queries, top, KEPT,
    )  # fmt: skip


def tiles_of(width: int, dtype: torch.dtype) -> Tiles:
    """Return the launch parameters of inner_top_kernel for a head size and a dtype."""
    if dtype == torch.float32 and width > 64:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 32, 4, 1)


def run_inner_top(weights: Weights, top: int) -> tuple[Tensor, Tensor]:
    """Return the `top` largest weights of each query, largest first, and their keys, (B, H, T, top).

    If a query sees fewer than `top` keys, the rest has weight 0 and key -1.

    top: k, at least 1. The time grows with k.
    """
    (query, key, lse, bias, table), (scale, cap, bias_scale) = weights[:5], weights[11:]
    sight = Sight(*weights[5:11])
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    tiles = tiles_of(width, query.dtype)
    largest = query.new_empty((batch, heads, queries, top), dtype=torch.float32)
    chosen = torch.empty_like(largest, dtype=torch.int64)
    bias_and_table = query if bias is None else bias, query if table is None else table.view(torch.uint8)
    options = {
        **sight.whole(query), **steps("query", query), **steps("key", key),
        **broadcast_steps("bias", bias, query, keys), **broadcast_steps("table", table, query, keys),
        "scale": scale, "cap": cap, "bias_scale": bias_scale, "heads": heads, "groups": heads // key_heads,
        "queries": queries, "keys": keys, "width": width, "top": top, "CAP": cap > 0,
        "BIAS": bias is not None, "TABLE": table is not None, "WIDTH": max(16, 1 << (width - 1).bit_length()),
        "EIGHTS": in_eights(query, key), "PRECISION": precision_of(query),
    }  # fmt: skip
    with on_device(query):
        inner_top_kernel[(-(-queries // tiles.rows), batch * heads)](
            query, key, lse, *bias_and_table, largest, chosen, **options,
            KEPT=1 << (top - 1).bit_length(), ROWS=tiles.rows, COLUMNS=tiles.columns,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return largest, chosen


inner_top = torch.library.custom_op(
    "regard::inner_top",
    mutates_args=(),
    schema=f"({ARGUMENTS}, SymInt top) -> (Tensor weights, Tensor keys)",
)(lambda *arguments: run_inner_top(Weights(*arguments[:14]), *arguments[14:]))
"""run_inner_top() as an operator, which torch.compile does not trace into."""


@inner_top.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weights = query.new_empty((*query.shape[:3], rest[-1]), dtype=torch.float32)
    return weights, torch.empty_like(weights, dtype=torch.int64)
