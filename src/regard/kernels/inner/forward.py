# mypy: disable-error-code="no-untyped-def"
"""Inner-product attention with masks: forward pass, by online softmax over tiles of keys.

The kernel reads no value that the mask hides from all queries of a tile, so a NaN there has no effect, and
key and value need no copy. Tiles that are hidden as a whole are skipped. No table of the mask is built.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.mask import end_of, key_tiles, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["NOT_SPECIALISED", "inner_forward_kernel", "load_rows", "used_keys"]

NOT_SPECIALISED = ("start", "left", "right", "queries", "keys", "heads", "groups", "length_step")
"""Arguments for whose values Triton compiles no variants of a kernel. Decoding changes them in every step."""


@triton.jit
def load_rows(tensor, rows, row_step, inside, width, WIDTH: tl.constexpr):
    """Load rows of a tensor (N, width), with 0 where `inside` is False and beyond the width."""
    channels = tl.arange(0, WIDTH)
    return tl.load(
        tensor + rows.to(tl.int64)[:, None] * row_step + channels[None, :],
        mask=inside[:, None] & (channels < width)[None, :], other=0.0,
    )  # fmt: skip


@triton.jit
def used_keys(
    columns,
    row,
    queries,
    end,
    start,
    left,
    right,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return which keys some query of the tile may see, (COLUMNS,); others are not loaded.

    row: the first query of the tile.
    """
    used_C = columns < end
    if LEFT:
        used_C = used_C & (columns >= row + start - left)
    if RIGHT:
        used_C = used_C & (columns <= tl.minimum(row + ROWS, queries) - 1 + start + right)
    return used_C


@triton.jit
def _read_tiles(
    total_RE, sum_R, best_R, first, last, row, query_RD, key, value, start, left, right, scale, queries, end,
    width, depth, key_row, value_row,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the tiles of keys `first` to last - 1 to the sums of one tile of queries.

    total_RE: (ROWS, DEPTH), sum of exp(score - best) * value.
    sum_R, best_R: (ROWS,), sum of exp(score - best), and the largest score, in units of log 2.
    MASKED: whether keys of these tiles can be hidden. If False, all keys are visible to all queries.

    Returns the new total_RE, sum_R and best_R.
    """
    rows = row + tl.arange(0, ROWS)
    for tile in range(first, last):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        used_C = columns < end
        key_CD = load_rows(key, columns, key_row, used_C, width, WIDTH)
        scores_RC = product(query_RD, tl.trans(key_CD), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION)
        if MASKED:
            seen_RC = visible(rows, columns, queries, end, start, left, right, key, key, LEFT, RIGHT, False)
            scores_RC = tl.where(seen_RC, scores_RC, float("-inf"))
            # 0 * NaN is NaN, so values of hidden keys are 0.
            used_C = used_keys(columns, row, queries, end, start, left, right, LEFT, RIGHT, ROWS)
        # `scale` is positive, so it is applied to the maximum, and by one multiply-add to each score.
        new_R = tl.maximum(best_R, tl.max(scores_RC, 1) * (scale * LOG2E))
        level_R = tl.where(new_R == float("-inf"), 0.0, new_R)
        weights_RC = tl.exp2(scores_RC * (scale * LOG2E) - level_R[:, None])
        factor_R = tl.exp2(best_R - level_R)
        sum_R = sum_R * factor_R + tl.sum(weights_RC, 1)
        value_CE = load_rows(value, columns, value_row, used_C, depth, DEPTH)
        total_RE = product(weights_RC.to(value_CE.dtype), value_CE, total_RE * factor_R[:, None], PRECISION)
        best_R = new_R
    return total_RE, sum_R, best_R


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def inner_forward_kernel(
    query, key, value, output, lse, lengths,
    start, left, right, queries, keys, heads, groups, length_step, scale, width, depth,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    output_batch, output_head, output_row,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, EIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute output and lse of one tile of queries.

    Launch grid: (query tiles * B H,). The tiles of one head are next to each other, the last tile first,
    because with a causal mask it takes the longest.
    output, lse: (B, H, T, E) and (B, H, T), receive the results. Without a visible key they are 0 and -inf.
    """
    if EIGHTS:
        width, depth = width // 8 * 8, depth // 8 * 8
        query_batch, query_head, query_row = query_batch // 8 * 8, query_head // 8 * 8, query_row // 8 * 8
        key_batch, key_head, key_row = key_batch // 8 * 8, key_head // 8 * 8, key_row // 8 * 8
        value_batch, value_head, value_row = value_batch // 8 * 8, value_head // 8 * 8, value_row // 8 * 8
    tiles = tl.cdiv(queries, ROWS)
    both = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tiles - 1 - tl.program_id(0) % tiles) * ROWS
    batch, head = both // heads, both % heads
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head // groups * key_head
    value += batch * value_batch + head // groups * value_head
    output += batch * output_batch + head * output_head
    end = tl.maximum(end_of(lengths, length_step, batch, keys, LENGTHS), 0)
    rows = row + tl.arange(0, ROWS)
    query_RD = load_rows(query, rows, query_row, rows < queries, width, WIDTH)
    total_RE = tl.zeros([ROWS, DEPTH], tl.float32)
    sum_R = tl.zeros([ROWS], tl.float32)
    best_R = tl.full([ROWS], float("-inf"), tl.float32)
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, False, ROWS, COLUMNS
    )
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        first_tile, last_tile = first, full_first
        if part == 1:
            first_tile, last_tile = full_first, full_last
        if part == 2:
            first_tile, last_tile = full_last, last
        if part > 0 or LEFT:
            total_RE, sum_R, best_R = _read_tiles(
                total_RE, sum_R, best_R, first_tile, last_tile, row, query_RD, key, value, start, left, right,
                scale, queries, end, width, depth, key_row, value_row, LEFT, RIGHT, part != 1, ROWS, COLUMNS,
                WIDTH, DEPTH, PRECISION,
            )  # fmt: skip
    none_R = sum_R == 0.0
    level_R = tl.where(none_R, float("-inf"), (best_R + tl.log2(sum_R)) / LOG2E)
    tl.store(lse + both * queries + rows, level_R, mask=rows < queries)
    total_RE = total_RE / tl.where(none_R, 1.0, sum_R)[:, None]
    channels = tl.arange(0, DEPTH)
    tl.store(
        output + rows.to(tl.int64)[:, None] * output_row + channels[None, :],
        total_RE.to(output.dtype.element_ty),
        mask=(rows < queries)[:, None] & (channels < depth)[None, :],
    )
