# mypy: disable-error-code="no-untyped-def"
"""Backward pass: upper bounds of gradients, from which scaling() in additive_series.py computes scales.

additive_reach_kernel computes the bounds of query and key that decide where the Fourier series is used.

PyTorch has operations for these maxima. But kernels can be launched together with those before and after
them (see replay.py), which takes less time on the host.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.additive_wide import wide_channel
from regard.kernels.forward_pass import Forward, Prepared
from regard.kernels.kernel_mask import end_of
from regard.kernels.launch import SPAN
from regard.kernels.quick_launch import quick_launch

__all__ = [
    "additive_maxima_kernel",
    "additive_reach_kernel",
    "additive_row_bounds_kernel",
    "bounds_of_rows",
    "leave_out_wide_channels",
    "maxima",
]


@quick_launch
@triton.jit
def additive_row_bounds_kernel(
    doutput, norm, magnitudes, row_bounds, heads, queries, depth, doutput_batch, doutput_head, doutput_row,
    size, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute the largest |element| of each row of dO, the gradient of the output; NaN if it has a NaN.

    doutput: reads dO, (B, H, T, E).
    norm: reads norm[1], 1 / row sum, (2, size), where size is B H T.
    magnitudes: writes the largest |element|, (size,).
    row_bounds: writes the same times norm[1], (size,).
    Launch grid: (blocks of ROWS rows,).
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there, both = rows < size, rows // queries
    at = doutput + both // heads * doutput_batch + both % heads * doutput_head + rows % queries * doutput_row
    largest, missing = tl.zeros([ROWS, DEPTH], tl.float32), tl.zeros([ROWS, DEPTH], tl.int32)
    for first in range(0, depth, DEPTH):
        channels = first + tl.arange(0, DEPTH)
        inside = there[:, None] & (channels < depth)[None, :]
        found = tl.abs(tl.load(at[:, None] + channels[None, :], mask=inside, other=0.0).to(tl.float32))
        largest = tl.maximum(largest, tl.where(found == found, found, 0.0))
        missing = tl.maximum(missing, (found != found).to(tl.int32))
    magnitude = tl.where(tl.max(missing, 1) > 0, float("nan"), tl.max(largest, 1))
    tl.store(magnitudes + rows, magnitude, mask=there)
    inverse = tl.load(norm + size + rows, mask=there, other=0.0)
    tl.store(row_bounds + rows, magnitude * inverse, mask=there)


def bounds_of_rows(doutput: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest |element| of each row of dO, (B, H, T), and the same times norm[1], (B H, T)."""
    batch, heads, queries, depth = doutput.shape
    magnitudes, size = norm.new_empty(batch, heads, queries), batch * heads * queries
    row_bounds = norm.new_empty(batch * heads, queries)
    additive_row_bounds_kernel[(-(-size // 8),)](
        doutput, norm, magnitudes, row_bounds, heads, queries, depth, *doutput.stride()[:3], size,
        ROWS=8, DEPTH=128, num_warps=4,
    )  # fmt: skip
    return magnitudes, row_bounds


@quick_launch
@triton.jit
def additive_maxima_kernel(
    peaks, column_bounds, peak, column_bound, tiles, key_tiles, keys, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the maximum over the tiles of what additive_weigh_kernel has written for each tile.

    peaks: reads (B H, tiles, key_tiles); peak: writes (B H,).
    column_bounds: reads (B H, tiles, keys); column_bound: writes (B H, keys).
    tiles: number of tiles of queries. keys: rounded up to whole tiles.
    Launch grid: (blocks of COLUMNS keys, B H).
    """
    both = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there, largest = columns < keys, tl.zeros([COLUMNS], tl.float32)
    for tile in range(tiles):
        at = column_bounds + (both * tiles + tile) * keys + columns
        largest = tl.maximum(largest, tl.load(at, mask=there, other=0.0))
    tl.store(column_bound + both * keys + columns, largest, mask=there)
    if tl.program_id(0) == 0:
        count, highest = tiles * key_tiles, tl.zeros([BLOCK], tl.float32)
        for first in range(0, count, BLOCK):
            places = first + tl.arange(0, BLOCK)
            found = tl.load(peaks + both * count + places, mask=places < count, other=0.0)
            highest = tl.maximum(highest, found)
        tl.store(peak + both, tl.max(highest))


def maxima(peaks: Tensor, column_bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of `peaks` for each sequence, (B H,), and that of each key, (B H, keys).

    peaks: (B H, tiles of queries, tiles of keys). column_bounds: (B H, tiles of queries, keys). All numbers
        are at least 0.
    """
    sequences, tiles, keys = column_bounds.shape
    peak, column_bound = peaks.new_empty(sequences), peaks.new_empty(sequences, keys)
    additive_maxima_kernel[(-(-keys // 128), sequences)](
        peaks, column_bounds, peak, column_bound, tiles, peaks.shape[2], keys, COLUMNS=128, BLOCK=1024,
        num_warps=4,
    )  # fmt: skip
    return peak, column_bound


@quick_launch
@triton.jit
def additive_reach_kernel(
    query, key, reach_of_query, reach_of_key, whole_of_query, whole_of_key, lengths, length_step, heads,
    groups, queries, keys, width, pitch, query_batch, query_head, query_row, key_batch, key_head, key_row,
    query_programs, query_tiles, key_tiles,
    LENGTHS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Leave wide channels out of the largest |element| of each tile, unless the tile has a NaN there.

    Wide channels need not be within the range of the series, because they are computed from q + k: see
    additive_series_wide.py.

    The arguments are those of additive_prepare_kernel, with TURNED = False; `pitch` is its `padded`.
    reach_of_query, reach_of_key: overwritten in spans that have a wide channel.
    Launch grid: (tiles of the query + tiles of the key, spans).
    """
    program, span, spans = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    channels, key_heads = span * SPAN + tl.arange(0, SPAN), heads // groups
    there, is_query = channels < width, program < query_programs
    both, tile = program // query_tiles, program % query_tiles
    batch, step, row = both // heads, tl.full([], 0, tl.int64) + query_row, tile * ROWS
    shared, end = batch * key_heads + both % heads // groups, tl.full([], 0, tl.int64) + queries
    at, place = query + batch * query_batch + both % heads * query_head, reach_of_query + program * spans
    if is_query == 0:
        program -= query_programs
        shared, tile = program // key_tiles, program % key_tiles
        batch, step, row = shared // key_heads, tl.full([], 0, tl.int64) + key_row, tile * COLUMNS
        end = tl.full([], 0, tl.int64) + end_of(lengths, length_step, batch, keys, LENGTHS)
        at = key + batch * key_batch + shared % key_heads * key_head
        place = reach_of_key + program * spans
    of_query, of_key = whole_of_query + shared * groups * pitch, whole_of_key + shared * pitch
    wide = wide_channel(of_query, of_key, groups, pitch, channels, there)
    if tl.max(wide, 0) != 0:
        MOST: tl.constexpr = ROWS if ROWS > COLUMNS else COLUMNS
        local = tl.arange(0, MOST)
        rows = row + local
        inside = (rows < end) & (local < tl.where(is_query, ROWS, COLUMNS))
        x = tl.load(
            at + rows[:, None] * step + channels[None, :], mask=inside[:, None] & there[None, :], other=0.0
        )
        x = x.to(tl.float32)
        size = tl.where((wide != 0)[None, :], 0.0, tl.abs(x))
        tl.store(place + span, tl.max(tl.max(tl.where(x == x, size, float("inf")), 1), 0))


def leave_out_wide_channels(forward: Forward, prepared: Prepared) -> None:
    """Leave wide channels out of prepared.reach, with additive_reach_kernel.

    prepared: exponentials in row-major order.
    """
    shape, launch = forward.shape, forward.launch
    sequences = shape.batch * shape.heads
    programs = sequences * shape.tiles[0]
    sources = {name: step for name, step in forward.sources.items() if name != "vector_head"}
    additive_reach_kernel[(len(prepared.reach), shape.spans)](
        forward.query, forward.key, *forward.split(prepared.reach), prepared.whole[:sequences],
        prepared.whole[sequences:], **forward.sight.by_length(forward.query), **forward.sizes,
        width=shape.width, pitch=shape.pitch, **sources, query_programs=programs, query_tiles=shape.tiles[0],
        key_tiles=shape.tiles[1], ROWS=launch.rows, COLUMNS=launch.columns, SPAN=SPAN, num_warps=4,
    )  # fmt: skip
