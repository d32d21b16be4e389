"""Launches the kernels of additive_series.py and additive_series_wide.py, for the Fourier series of tanh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive_series import (
    BASIS,
    BASIS_ROWS,
    additive_basis_kernel,
    additive_series_kernel,
    series,
)
from regard.kernels.additive_series_wide import WIDE_ROWS, additive_series_wide_kernel
from regard.kernels.forward_pass import Sight, steps
from regard.kernels.launch import BASIS_ROOM, up

if TYPE_CHECKING:
    from regard.kernels.backward_pass import Backward, Weighed

__all__ = ["Basis", "series_gradients"]

NO_LENGTHS = Sight(None, None, None, 0, None, None)
"""A mask that hides nothing. The query has no padding, so its basis functions are computed with this mask."""


class Basis(NamedTuple):
    """The results of additive_basis_kernel for a range of channels of the query or the key.

    functions: the basis functions (sines, cosines and exponentials of each element x), (B H, rows, padded
        channels, BASIS).
    ranges: the maximum of x and of -x in each block of BASIS_ROWS rows, where x is an element of query or
        key, (B H, blocks, 2, padded channels).
    """

    functions: Tensor
    ranges: Tensor


def series_gradients(backward: Backward, weighed: Weighed, first: int, rows: int, exact: Tensor) -> Tensor:
    """Compute the gradients of query and key from query rows `first` to first + rows - 1 by the series.

    The series is the Fourier series of tanh. Writes these rows of backward.dquery, and adds to backward.dkey.

    weighed: the gradient of v . tanh(q + k) for these rows.
    exact: the gradient of the query that to_query() computed for the tiles where the series is not valid
        (beyond REACH). It is added to the gradient of the query.

    Returns partial sums of the gradient of the vector v, (B, H, parts, D); to_vector() adds them.
    """
    forward, shape, sight = backward.forward, backward.shape, backward.forward.sight
    # The basis functions of the keys are the same for all chunks of query rows. If the basis functions of
    # all channels fit in BASIS_ROOM, they are computed once and kept.
    block = backward.tiles["CHANNELS"]
    rows_of_basis = max(backward.sequences * shape.chunk, backward.key_sequences * shape.keys)
    count = max(1, BASIS_ROOM // (rows_of_basis * 2 * BASIS.value) // block) * block
    tiles = -(-rows // backward.tiles["ROWS"])
    of_wide = -(-rows // WIDE_ROWS.value) if backward.apart else 0
    dvector = forward.new(shape.batch, shape.heads, tiles + of_wide, shape.width)
    query, dquery = (each[:, :, first : first + rows] for each in (forward.query, backward.dquery))
    for channel in range(0, shape.width, count):
        if backward.key_basis is None or count < shape.width:
            backward.key_basis = _basis(
                backward, forward.key, channel, count, sight.by_length(forward.key), weighed.ranges
            )
        _multiply(
            backward, weighed.half, query, backward.key_basis, weighed.row_bounds, weighed, dquery, exact,
            dvector, channel, first,
            offset=first + sight.start, before=sight.left, after=sight.right, QUERY=True,
        )  # fmt: skip
        if backward.others:
            query_basis = _basis(backward, query, channel, count, NO_LENGTHS.by_length(query), weighed.ranges)
            _multiply(
                backward, weighed.half_turned, forward.key, query_basis, weighed.column_bounds, weighed,
                backward.dkey, backward.dkey[None], dvector, channel, first,
                offset=-first - sight.start, before=sight.right, after=sight.left, QUERY=False,
            )  # fmt: skip
    if backward.apart:
        _add_wide(
            backward, weighed.half, query, forward.key, weighed.row_bounds, weighed, dquery,
            dvector[:, :, tiles:], offset=first + sight.start, before=sight.left, after=sight.right,
            QUERY=True,
        )  # fmt: skip
        _add_wide(
            backward, weighed.half_turned, forward.key, query, weighed.column_bounds, weighed, backward.dkey,
            dvector, offset=-first - sight.start, before=sight.right, after=sight.left, QUERY=False,
        )  # fmt: skip
    return dvector


def _basis(
    backward: Backward, source: Tensor, channel: int, count: int, lengths: dict[str, Any],
    of_sequences: Tensor,
) -> Basis:  # fmt: skip
    """Compute the sines, cosines and exponentials of `source` for `count` channels, from `channel` on.

    source: query or key.
    lengths: the mask by length, as keyword arguments of the kernel.
    of_sequences: Weighed.ranges.
    """
    assert backward.rows is not None
    (batch, heads, rows), width = source.shape[:3], backward.shape.width
    padded = up(min(count, width - channel), backward.tiles["CHANNELS"])
    blocks = -(-rows // BASIS_ROWS.value)
    functions = source.new_empty(batch * heads, rows, padded, BASIS.value, dtype=torch.float16)
    ranges = backward.forward.new(batch * heads, blocks, 2, padded)
    additive_basis_kernel[(blocks, -(-padded // 8), batch * heads)](
        source, functions, ranges, series(source.device), of_sequences, *backward.whole(backward.rows),
        **lengths, heads=heads, count=rows, first_channel=channel, width=width, padded=padded,
        batch_step=source.stride(0), head_step=source.stride(1), row_step=source.stride(2),
        others=backward.shape.heads // heads, groups=backward.shape.groups, pitch=backward.shape.pitch,
        WIDTH=8, APPROXIMATE=backward.forward.approximate, num_warps=4,
    )  # fmt: skip
    return Basis(functions, ranges)


def _multiply(
    backward: Backward, gradients: Tensor, own: Tensor, basis: Basis, bounds: Tensor, weighed: Weighed,
    found: Tensor, exact: Tensor, dvector: Tensor, channel: int, first: int, *, offset: int,
    before: int | None, after: int | None, QUERY: bool,
) -> None:  # fmt: skip
    """Launch additive_series_kernel, which writes the gradient of `own` (query or key) to `found`.

    first: the first query row of the chunk.

    The other arguments are explained in the comment above additive_series_kernel."""
    forward, shape, rows = backward.forward, backward.shape, own.shape[2]
    count, padded = basis.functions.shape[1:3]
    assert backward.rows is not None
    of_query, of_key = forward.split(backward.rows.reach)
    # The query is a chunk of rows, which begins with a whole tile.
    begin = first // backward.launch.rows * shape.spans
    reach = (of_query.flatten()[begin:], of_key) if QUERY else (of_key, of_query.flatten()[begin:])
    sides = (shape.tiles[0], backward.launch.rows), (shape.tiles[1], backward.launch.columns)
    (own_tiles, own_tile), (other_tiles, other_tile) = sides if QUERY else sides[::-1]
    grid = -(-rows // backward.tiles["ROWS"]), padded // backward.tiles["CHANNELS"]
    additive_series_kernel[(*grid, own.shape[0] * own.shape[1])](
        gradients, own, *basis, series(own.device), *reach, forward.vector, bounds, weighed.peaks,
        weighed.beyond, found, exact, dvector, weighed.ranges, shape.heads, shape.groups, rows, count,
        channel, shape.width, padded,
        forward.scale, gradients.stride(0), gradients.stride(1), *own.stride()[:3],
        forward.sources["vector_head"], bounds.stride(0), weighed.beyond.stride(0), found.stride(1),
        exact.stride(2), exact.stride(0), len(exact), *dvector.stride()[1:3], offset, before or 0, after or 0,
        own_tiles * shape.spans, other_tiles * shape.spans, shape.spans,
        OWN_TILE=own_tile, OTHER_TILE=other_tile,
        BEFORE=before is not None, AFTER=after is not None, QUERY=QUERY, ADD=not QUERY and first > 0,
        PRECISION=forward.precision,
        APPROXIMATE=forward.approximate, **backward.tiles,
    )  # fmt: skip


def _add_wide(
    backward: Backward, gradients: Tensor, own: Tensor, other: Tensor, bounds: Tensor, weighed: Weighed,
    found: Tensor, dvector: Tensor, *, offset: int, before: int | None, after: int | None, QUERY: bool,
) -> None:  # fmt: skip
    """Launch additive_series_wide_kernel, which adds the gradient of `own` in wide channels to `found`.

    other: the key if `own` is the query, otherwise the query. The other arguments are those of _multiply().
    """
    forward, shape = backward.forward, backward.shape
    assert backward.rows is not None
    additive_series_wide_kernel[(-(-own.shape[2] // WIDE_ROWS.value), own.shape[0] * own.shape[1])](
        gradients, own, other, forward.vector, bounds, weighed.peaks, found, dvector, weighed.ranges,
        *backward.whole(backward.rows), **forward.sight.by_length(own), heads=shape.heads,
        groups=shape.groups, own_count=own.shape[2], other_count=other.shape[2], width=shape.width,
        pitch=shape.pitch, scale=forward.scale, gradients_head=gradients.stride(0),
        gradients_row=gradients.stride(1), **steps("own", own), **steps("other", other),
        vector_head=forward.sources["vector_head"], bounds_head=bounds.stride(0),
        found_head=found.stride(1), dvector_head=dvector.stride(1), dvector_row=dvector.stride(2),
        offset=offset, before=before or 0, after=after or 0, BEFORE=before is not None,
        AFTER=after is not None, QUERY=QUERY, COLUMNS=256, APPROXIMATE=forward.approximate, num_warps=4,
    )  # fmt: skip
