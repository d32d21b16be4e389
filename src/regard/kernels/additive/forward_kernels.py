# mypy: disable-error-code="no-untyped-def"
"""Online softmax over the keys, and the weighted sum of the values.

The keys can be split over several programs of additive_read_kernel (split-K, as in FlashDecoding);
additive_combine_kernel then combines their partial results.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.dropout import dropout_factors
from regard.kernels.mask import end_of, tile_is_seen, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["additive_combine_kernel", "additive_read_kernel"]


@triton.jit
def _joined(best, total, output, scores, value, factors, DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax: return row maximum, row sum and output after one more tile of keys.

    best: row maximum of the tiles so far, (ROWS,).
    total: row sum of exp(score - maximum) so far, (ROWS,).
    output: sum of exp(score - maximum) value so far, (ROWS, DEPTH).
    scores: the scores of the new tile, -inf where masked, (ROWS, COLUMNS).
    value: the values of the new tile, (COLUMNS, DEPTH).
    factors: if DROPOUT is True, the dropout factors of the weights of the new tile, (ROWS, COLUMNS).
    """
    highest = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2((scores - level[:, None]) * LOG2E)
    shrink = tl.exp2((best - level) * LOG2E)
    total = total * shrink + tl.sum(weights, 1)
    output = output * shrink[:, None]
    if DROPOUT:
        weights = weights * factors
    output = product(weights.to(value.dtype), value, output, PRECISION)
    return highest, total, output


@triton.jit
def _finish(
    best, total, found, output, lse, norm, place, at, rows_inside, inside, part, size, depth, first,
    PARTED: tl.constexpr,
):  # fmt: skip
    """Write the results of the online softmax: output, lse and norm.

    best, total, found: the accumulators of _joined(): row maximum, row sum and output.
    norm: row maximum and 1 / total, (2, rows), from which the backward pass recomputes the weights.
    place: index of each row.
    at: index of each output element.
    size: number of rows.
    first: whether this program computes the first output channels. If False, it writes only `output`. The
        program with the first channels writes lse and norm of the same rows.
    PARTED: whether the keys are split into parts. If True, this program has processed one part, number
        `part`. It writes the following partial results, which additive_combine_kernel combines:
        output: the accumulator `found`, not divided by total, (parts, rows, E).
        norm: row maximum and total, (parts, 2, rows).
        lse: not written.
    """
    level = tl.where(best == float("-inf"), 0.0, best)
    if PARTED:
        norm += part * 2 * size
        tl.store(output + part * size * depth + at, found, mask=inside)
        tl.store(norm + place, best, mask=rows_inside & first)
        tl.store(norm + size + place, total, mask=rows_inside & first)
    else:
        something = tl.where(total == 0.0, 1.0, total)
        tl.store(output + at, found / something[:, None], mask=inside)
        sums = tl.where(total == 0.0, float("-inf"), level + tl.log(something))
        tl.store(lse + place, sums, mask=rows_inside & first)
        tl.store(norm + place, level, mask=rows_inside & first)
        tl.store(norm + size + place, 1.0 / something, mask=rows_inside & first)


@triton.jit
def additive_read_kernel(
    scores, held, value, output, lse, norm, seed, dropout, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count, value_batch, value_head, value_row,
    scores_part, scores_head, scores_row, parts, key_tiles, part_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, HOLD: tl.constexpr,
    SCORE_PARTS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PARTED: tl.constexpr,
    EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute mask and softmax for ROWS query rows, and DEPTH channels of their output, weights @ value.

    scores: reads (SCORE_PARTS, B H, rows, S): partial sums over the channels. The kernel adds the parts.
    held: if HOLD is True, writes the complete scores for the backward pass, (B H, rows, S).
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T); if PARTED is True, writes partial
        results instead (see _finish()).
    parts: number of parts into which the keys are split.
    part_tiles: number of key tiles in each part.
    Launch grid: (row tiles, blocks of DEPTH channels, B H * parts).
    """
    if EIGHTS:
        depth, value_row = depth // 8 * 8, value_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
    both = tl.program_id(2).to(tl.int64) // parts
    part = tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = first_row + tl.program_id(0) * ROWS
    rows = first_row + local
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    value_base = value + batch * value_batch + head // groups * value_head
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DEPTH], tl.float32)
    last = first_row + row_count
    for tile in range(part * part_tiles, tl.minimum((part + 1) * part_tiles, key_tiles)):
        column = tile * COLUMNS
        if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            columns = column + tl.arange(0, COLUMNS)
            seen = visible(
                rows, columns, last, end, start, left, right,
                document_of_query + batch * documents_query_step,
                document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
            these = tl.load(scores + at, mask=seen, other=0.0)
            for each in tl.static_range(1, SCORE_PARTS):  # unrolled, so that all loads are in flight at once
                these += tl.load(scores + each * scores_part + at, mask=seen, other=0.0)
            if HOLD & (tl.program_id(1) == 0):
                tl.store(held + at, these, mask=seen)
            values = tl.load(
                value_base + columns.to(tl.int64)[:, None] * value_row + channels[None, :],
                mask=(columns < end)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            these = tl.where(seen, these, float("-inf"))
            factors = these
            if DROPOUT:
                factors = dropout_factors(seed, dropout, both, rows, columns, queries, keys)
            best, total, found = _joined(best, total, found, these, values, factors, DROPOUT, PRECISION)
    place = both * row_count + local if PARTED else both * queries + rows
    at = place[:, None] * depth + channels[None, :]
    inside = (rows < last)[:, None] & (channels < depth)[None, :]
    _finish(
        best, total, found, output, lse, norm, place, at, rows < last, inside, part.to(tl.int64), size,
        depth, tl.program_id(1) == 0, PARTED,
    )  # fmt: skip


@triton.jit
def additive_combine_kernel(
    outputs, norms, output, lse, norm, size, part_size, queries, first_row, row_count, depth, parts,
    ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute output, lse and norm from the partial results for several parts of the keys (split-K).

    outputs, norms: reads the partial results of additive_read_kernel, (parts, rows, E) and (parts, 2, rows),
        where rows = part_size = B * H * row_count.
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T).
    size: B * H * T.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    wide = tl.full([], 0, tl.int64) + part_size
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    inside = (rows < part_size)[:, None] & (channels < depth)[None, :]
    at = rows[:, None] * depth + channels[None, :]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    for part in tl.range(0, parts, loop_unroll_factor=8):  # so that several loads are in flight at once
        best = tl.maximum(best, tl.load(norms + part * 2 * wide + rows, mask=rows < part_size, other=0.0))
    level = tl.where(best == float("-inf"), 0.0, best)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DEPTH], tl.float32)
    for part in tl.range(0, parts, loop_unroll_factor=8):
        norms_here = norms + part * 2 * wide + rows
        shrink = tl.exp2((tl.load(norms_here, mask=rows < part_size, other=0.0) - level) * LOG2E)
        total += shrink * tl.load(norms_here + wide, mask=rows < part_size, other=0.0)
        found += shrink[:, None] * tl.load(outputs + part * wide * depth + at, mask=inside, other=0.0)
    place = rows // row_count * queries + first_row + rows % row_count
    at = place[:, None] * depth + channels[None, :]
    _finish(
        best, total, found, output, lse, norm, place, at, rows < part_size, inside, 0, size,
        depth, tl.program_id(1) == 0, False,
    )  # fmt: skip
