# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: the k largest weights of each query and their keys, without T x S.

A program keeps a list of the largest scores of each of its queries, and visits the keys tile by tile. While a
query has a score in the tile that is larger than the smallest score in its list, this score replaces the
smallest one, and is removed from the tile. This happens at most k times per tile, and rarely after the first
tiles: of n scores in random order, about k ln(n / k) enter the list. The result is exact.

candidates.py is faster, and uses this kernel where its lists are too short.

inner_top is run_inner_top() as a custom operator, which torch.compile does not trace into.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting, on_device
from regard.kernels.additive.forward import Sight
from regard.kernels.launch import in_eights, in_rows, precision_of, steps
from regard.kernels.looking import ARGUMENTS
from regard.kernels.looking.candidates import (
    PACKED,
    SCORES,
    collected_assembly,
    collected_constraints,
    inner_candidates_kernel,
    inner_sort_kernel,
    listing_assembly,
    listing_constraints,
)
from regard.kernels.looking.measures import (
    Tiles,
    broadcast_steps,
    has_tma,
    key_block,
    slots_of,
)
from regard.kernels.looking.measures import tiles_of as look_tiles_of
from regard.kernels.looking.scores import HIDDEN, NO_KEY, capped
from regard.kernels.mask import end_of, key_tiles, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["inner_top", "inner_top_kernel", "needs_maxima", "run_inner_top"]

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
    level: (ROWS,), lse * log2(e) of the queries.
    """
    places = tl.arange(0, KEPT)[None, :]
    largest = tl.where(places < top, largest, HIDDEN)  # FULL in places that are not used
    for rank in range(top):
        best = tl.max(largest, 1)
        chosen = tl.min(tl.where(largest == best[:, None], largest_keys, NO_KEY), 1)
        some = best > HIDDEN
        at = rows.to(tl.int64) * top + rank
        tl.store(weights + at, tl.where(some, tl.exp2(best - level), 0.0), mask=rows < queries)
        tl.store(keys + at, tl.where(some, chosen, -1).to(tl.int64), mask=rows < queries)
        largest = tl.where(largest_keys == chosen[:, None], HIDDEN, largest)


@triton.jit
def inner_top_kernel(
    query, key, lse, bias, table, weights, chosen, records, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step, scale, cap, bias_scale, heads,
    groups, queries, keys, width, top, query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row, table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, KEPT: tl.constexpr, LISTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, EIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the `top` largest weights of each query in `weights` and their keys in `chosen`, (B, H, T, top).

    Launch grid: (tiles of queries, B H). With a causal mask, the last queries see the most keys, so they are
    processed first. If a query sees fewer than `top` keys, the rest has weight 0 and key -1.

    records: if LISTED is not 0, the lists of candidates.py. A tile of queries is computed only if one
        of its lists was too short, with more than LISTED keys.
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
    if LISTED > 0:
        record = records + (both * tl.num_programs(0) + query_tile) * (1 + LISTED) * ROWS
        if tl.max(tl.load(record + tl.arange(0, ROWS)), 0) <= LISTED:
            return
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
    with on_device(query):
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


def on_hopper(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU, whose matrix products have the layout of collected_assembly()."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _in_one_warp_group(tiles: Tiles) -> bool:
    """Whether one warp group computes 64 keys x 64 queries, for which collected_assembly() is written."""
    return (tiles.warps, tiles.groups, tiles.columns, tiles.rows) == (4, 1, 64, 64)


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
