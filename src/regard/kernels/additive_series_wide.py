# mypy: disable-error-code="no-untyped-def"
"""Gradients of query, key and vector in wide channels, in the tiles of additive_series.py; see there.

The Fourier series is not valid in wide channels (see tanh.py). This file computes them from q + k, in the
tiles that are within REACH without these channels; additive_wide.py does so in the other tiles. It reads the
same gradient of the scores as additive_series_kernel, g in float16, so the relative error of each term is at
most 2^-11. The results are added to the gradients of the other tiles. In wide channels,
additive_series_kernel adds 0.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.additive_series import scaling
from regard.kernels.additive_wide import wide_channel
from regard.kernels.kernel_mask import end_of
from regard.kernels.quick_launch import quick_launch
from regard.kernels.series_rows import window_rows
from regard.kernels.tanh import exact_share, flags_of, lowest, packed

__all__ = ["WIDE_ROWS", "additive_series_wide_kernel"]

WIDE_ROWS = tl.constexpr(16)
"""Number of rows of the own side that one program processes. Each such group of query rows has its own
partial sums of the gradient of the vector."""


@triton.jit
def _sums(x, others, row, gradients, low, high, end, COLUMNS: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Return the sums of g (r - r^2) and of g (r - 1/2) over the rows `low` to high - 1 of the other side.

    x: elements of the own side in one channel, (WIDE_ROWS,).
    others: pointer to row 0 of the other side in this channel, with row stride `row`.
    gradients: pointers to g of the own rows and row 0 of the other side, (WIDE_ROWS,).
    end: number of rows of the other side without padding. Padding is not read, because it may contain NaN.
    """
    slopes, shares = tl.zeros([WIDE_ROWS], tl.float32), tl.zeros([WIDE_ROWS], tl.float32)
    for start in range(low, high, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < tl.minimum(high, end)
        y = tl.load(others + columns.to(tl.int64) * row, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradients[:, None] + columns[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
        r = exact_share(x[:, None] + y[None, :], APPROXIMATE)
        # Where g is 0, a hidden key may contain NaN.
        slopes += tl.sum(tl.where(g == 0.0, 0.0, g * (r - r * r)), 1)
        shares += tl.sum(tl.where(g == 0.0, 0.0, g * (r - 0.5)), 1)
    return slopes, shares


# Arguments of additive_series_wide_kernel: those of additive_series_kernel and wide_in_sequence(), and
#
# others               reads the other side: the key if QUERY is True, otherwise the query
# found                reads and writes: adds the gradient of the own side in wide channels
# dvector              with QUERY, writes the partial sums of dv in all channels; 0 if the channel is not wide
# Launch grid: (groups of WIDE_ROWS rows, B H or B K).
@quick_launch
@triton.jit
def additive_series_wide_kernel(
    gradients, own, others, vector, bounds, peaks, found, dvector, of_sequences, whole_of_query, whole_of_key,
    lengths, length_step, heads, groups, own_count, other_count, width, pitch, scale,
    gradients_head, gradients_row, own_batch, own_head, own_row, other_batch, other_head, other_row,
    vector_head, bounds_head, found_head, dvector_head, dvector_row, offset, before, after,
    LENGTHS: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, QUERY: tl.constexpr,
    COLUMNS: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute dq and dv (if QUERY is True) or dk in wide channels, for WIDE_ROWS rows."""
    own_both, key_heads = tl.program_id(1).to(tl.int64), heads // groups
    own_heads, walks = (heads, 1) if QUERY else (key_heads, groups)
    batch, first_head = own_both // own_heads, own_both % own_heads * walks
    shared = batch * key_heads + first_head // groups
    rows = tl.program_id(0) * WIDE_ROWS + tl.arange(0, WIDE_ROWS)
    keys = end_of(lengths, length_step, batch, other_count if QUERY else own_count, LENGTHS)
    end, here = (keys, rows < own_count) if QUERY else (other_count, rows < keys)
    low, high = window_rows(other_count, offset, before, after, BEFORE, AFTER, WIDE_ROWS, COLUMNS)
    own_at = own + batch * own_batch + own_both % own_heads * own_head + rows.to(tl.int64) * own_row
    found_at = found + own_both * found_head + rows.to(tl.int64) * width
    flags = flags_of(of_sequences, batch * heads + first_head, walks)
    of_query, of_key = whole_of_query + shared * groups * pitch, whole_of_key + shared * pitch
    for first in range(0, width, 64):
        channels, of_vector = first + tl.arange(0, 64), tl.zeros([64], tl.float32)
        bits = tl.full([], 0, tl.int64)
        if (flags & 5) == 5:
            bits = packed(wide_channel(of_query, of_key, groups, pitch, channels, channels < width))
        while bits != 0:
            channel = first + lowest(bits)
            bits &= bits - 1
            x = tl.load(own_at + channel, mask=here, other=0.0).to(tl.float32)
            total = tl.load(found_at + channel, mask=here, other=0.0).to(tl.float32)
            for walk in range(walks):
                head = first_head + walk
                both = batch * heads + head
                at = others + batch * other_batch + (head // groups if QUERY else head) * other_head + channel
                g_at = gradients + both * gradients_head + rows.to(tl.int64) * gradients_row
                slopes, shares = _sums(x, at, other_row, g_at, low, high, end, COLUMNS, APPROXIMATE)
                bound = tl.load(bounds + both * bounds_head + rows, mask=here, other=0.0)
                _, undone = scaling(bound, tl.load(peaks + both), scale)
                v = tl.load(vector + head * vector_head + channel).to(tl.float32)
                total += slopes * undone * (4.0 * v)
                if QUERY:
                    of_all = tl.sum(tl.where(here, shares * undone, 0.0), 0) * -2.0
                    of_vector = tl.where(channels == channel, of_all, of_vector)
            tl.store(found_at + channel, total, mask=here)
        if QUERY:
            at_vector = dvector + own_both * dvector_head + tl.program_id(0) * dvector_row + channels
            tl.store(at_vector, of_vector, mask=channels < width)
