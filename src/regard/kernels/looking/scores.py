# mypy: disable-error-code="no-untyped-def"
"""Parts of the looking kernels for inner products: the weights of a tile, and the order of programs.

A tile is transposed: (keys, queries).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E, TWICE_LOG2E

__all__ = [
    "HIDDEN",
    "NO_KEY",
    "capped",
    "hide",
    "load_queries",
    "log_weights",
    "place_of_program",
    "tile_logs",
]

HIDDEN = tl.constexpr(-1e30)
"""log2 of the weight of a hidden key. It is finite, so that 0 * HIDDEN is 0; 0 * -inf would be NaN."""

NO_KEY = tl.constexpr(2147483647)
"""Greater than the index of every key."""

TOGETHER = tl.constexpr(16)
"""Number of heads whose tiles of queries are processed in one order, see place_of_program()."""


@triton.jit
def capped(scores, cap):
    """Return cap * tanh(scores / cap)."""
    return cap - 2 * cap / (1.0 + tl.exp2(scores * (TWICE_LOG2E / cap)))


@triton.jit
def log_weights(
    products, level, columns, rows, scale, cap, bias_scale, bias, bias_row, bias_column, queries, end,
    CAP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Return log2 of weights from the inner products of queries and keys.

    level: lse * log2(e) of the queries. columns, rows: the indices of the keys and of the queries. Their
        shapes are those of `products` or broadcast to it.
    """
    if CAP:
        logs = capped(products * scale, cap) * (bias_scale * LOG2E) - level
    else:
        logs = products * (scale * bias_scale * LOG2E) - level
    if BIAS:
        at = columns.to(tl.int64) * bias_column + rows.to(tl.int64) * bias_row
        added = tl.load(bias + at, mask=(columns < end) & (rows < queries), other=0.0)
        logs += added.to(tl.float32) * (bias_scale * LOG2E)
        logs = tl.maximum(logs, HIDDEN, propagate_nan=tl.PropagateNan.ALL)
    return logs


@triton.jit
def hide(
    logs, columns, rows, start, low, high, table, document_of_query, document_of_key, queries, end,
    table_row, table_column, LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Return `logs` with HIDDEN where the mask hides the key.

    columns, rows: see log_weights(). low, high: for each query, keys j with low <= j < high are visible.
    """
    seen = columns < high
    if LEFT:
        seen = seen & (columns >= low)
    if DOCUMENTS:
        of_query = tl.load(document_of_query + rows + start, mask=rows < queries, other=-1)
        of_key = tl.load(document_of_key + columns, mask=columns < end, other=-1)
        seen = seen & (of_key == of_query)
    if TABLE:
        at = columns.to(tl.int64) * table_column + rows.to(tl.int64) * table_row
        seen = seen & (tl.load(table + at, mask=(columns < end) & (rows < queries), other=0) != 0)
    return tl.where(seen, logs, HIDDEN)


@triton.jit
def load_queries(
    query, lse, rows, start, left, right, queries, end, width, query_row,
    RIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return what tile_logs() needs of a tile of queries: the queries, level, low and high.

    query, lse: of one sequence and head. rows: the indices of the queries.
    """
    channels = tl.arange(0, WIDTH)
    queries_RD = tl.load(
        query + rows.to(tl.int64)[:, None] * query_row + channels[None, :],
        mask=(rows < queries)[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip
    sums = tl.load(lse + rows, mask=rows < queries, other=float("-inf"))
    level = tl.where(sums == float("-inf"), -HIDDEN, sums * LOG2E)  # all weights 0 if no key is seen
    low = rows + (start - left)
    high = rows * 0 + end
    if RIGHT:
        high = tl.minimum(high, rows + (start + right + 1))
    return queries_RD, level, low, high


@triton.jit
def tile_logs(
    tile, rows, query, level, low, high, key, block, block_row, block_column, bias, table, document_of_query,
    document_of_key, start, scale, cap, bias_scale, queries, end, width, key_row, bias_row, bias_column,
    table_row, table_column,
    LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return log2 of the weights of a tile of keys, (COLUMNS, ROWS), and HIDDEN where a key is hidden.

    tile: number of the tile of keys.
    rows: (ROWS,), the indices of the queries.
    query: (ROWS, WIDTH), the queries.
    level: (ROWS,), lse * log2(e) of the queries.
    low, high: (ROWS,), the window of the mask: keys j with low <= j < high are visible.
    block, block_row, block_column: a tensor descriptor of the keys, and the place of the first key, if TMA.
    MASKED: whether keys of this tile can be hidden. If False, all keys are visible to all queries.
    """
    channels, places = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    columns = tile * COLUMNS + places
    keys = key + tl.cast(tile, tl.int64) * (COLUMNS * key_row)
    of_tile = places[:, None] * key_row + channels[None, :]
    if TMA:
        keys_CD = block.load([block_row + tile * COLUMNS, block_column])
    elif WHOLE and not MASKED:
        keys_CD = tl.load(keys + of_tile)
    else:
        inside = (columns < end)[:, None] & (channels < width)[None, :]
        keys_CD = tl.load(keys + of_tile, mask=inside, other=0.0)
    products = product(keys_CD, tl.trans(query), tl.zeros([COLUMNS, ROWS], tl.float32), PRECISION)
    logs = log_weights(
        products, level[None, :], columns[:, None], rows[None, :], scale, cap, bias_scale, bias, bias_row,
        bias_column, queries, end, CAP, BIAS,
    )  # fmt: skip
    if MASKED:
        logs = hide(
            logs, columns[:, None], rows[None, :], start, low[None, :], high[None, :], table,
            document_of_query, document_of_key, queries, end, table_row, table_column, LEFT, DOCUMENTS, TABLE,
        )  # fmt: skip
    return logs


@triton.jit
def place_of_program(RIGHT: tl.constexpr):
    """Return which sequence and head (as one number) and which tile of queries this program computes.

    Launch grid: (tiles of queries, B H). With a causal mask (RIGHT), the last queries see the most keys. They
    are processed first, for TOGETHER heads at a time, so that no long program starts at the end.
    """
    head, query_tile, tiles = tl.program_id(1), tl.program_id(0), tl.num_programs(0)
    if RIGHT:
        program = head * tiles + query_tile
        first_head = program // (TOGETHER * tiles) * TOGETHER
        heads = tl.minimum(tl.num_programs(1) - first_head, TOGETHER)
        program -= first_head * tiles
        query_tile = program // heads
        head = first_head + program - query_tile * heads
    return head, tiles - 1 - query_tile
