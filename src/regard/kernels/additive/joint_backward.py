"""Launches the kernels of joint_kernels.py: gradients of query, key and vector in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.kernels.additive.forward import Prepared
from regard.kernels.additive.joint_kernels import (
    GROUP,
    additive_gradients_kernel,
    additive_key_sum_kernel,
)
from regard.kernels.launch import Shape, up

if TYPE_CHECKING:
    from regard.kernels.additive.backward import Backward, Weighed

__all__ = ["fills_groups", "joint_gradients", "rows_at_once"]

PARTIAL_ROOM = 128 << 20
"""Maximum size in bytes of the partial sums of the gradient of the key. If all queries would need more, some
of them are processed at a time."""

MOST_WASTE = 1.3
"""If the rows of all groups, including empty rows, are at most this many times the queries, one pass is
faster than two."""


def fills_groups(backward: Backward) -> bool:
    """Whether one pass is used: in half precision, unless too many rows of the last group are empty."""
    queries = backward.shape.queries
    return not backward.forward.centred and up(queries, GROUP.value) <= MOST_WASTE * queries


def rows_at_once(backward: Backward, rows: int) -> int:
    """Return how many of `rows` queries are processed at a time: a multiple of the rows of a tile."""
    shape, tile = backward.shape, backward.launch.rows
    group = backward.sequences * up(shape.keys, 4) * shape.pitch * _dtype_of_sums(shape).itemsize
    most = max(tile, PARTIAL_ROOM // group * GROUP.value // tile * tile)
    return up(-(-rows // -(-rows // most)), tile)


def _dtype_of_sums(shape: Shape) -> torch.dtype:
    """Return the dtype of the partial sums of the gradient of the key.

    For bfloat16, they are rounded to bfloat16, which adds an error as large as that of rounding their sum.
    Writing and reading them takes a large part of the time.
    """
    return torch.bfloat16 if shape.dtype == torch.bfloat16 else torch.float32


def joint_gradients(
    backward: Backward, prepared: Prepared, weighed: Weighed, first: int, rows: int
) -> tuple[Tensor, list[Tensor]]:
    """Compute the gradients of query, key and vector from query rows `first` to first + rows - 1.

    The gradient of the key is added to backward.dkey; if `first` is 0, it is written there.

    prepared: e^2q and e^2k, in row-major order.
    weighed: the gradient of v . tanh(q + k) for these rows.

    Returns the gradient of the query as Backward.to_query() does, and partial sums of the gradient of the
    vector v, (B, H, parts, D).
    """
    forward, shape = backward.forward, backward.shape
    warps = min(4, 1 << (-(-shape.pitch // 64) - 1).bit_length())
    blocks = -(-shape.width // (64 * warps))
    most, key_tiles = rows_at_once(backward, rows), shape.tiles[1]
    programs = backward.sequences * -(-min(most, rows) // GROUP.value) * blocks
    parts = shape.key_parts(programs * warps, key_tiles, weighed.turned.device)
    part_tiles = -(-key_tiles // parts)
    parts = -(-key_tiles // part_tiles)
    place = backward.dquery[None, :, :, first : first + rows]
    if parts > 1:
        place = forward.new(parts, *place.shape[1:])
    of_vector: list[Tensor] = []
    for begin in range(0, rows, most):
        count = min(most, rows - begin)
        groups = -(-count // GROUP.value)
        dquery = place[:, :, :, begin : begin + count]
        dvector = forward.new(shape.batch, shape.heads, parts * groups, shape.width)
        sizes = groups, backward.sequences, up(shape.keys, 4), shape.pitch
        partial = weighed.dscores.new_empty(sizes, dtype=_dtype_of_sums(shape))
        turned = weighed.turned[:, :, begin:]
        sums = {
            **forward.sight.by_position(forward.query), "heads": shape.heads, "groups": shape.groups,
            "keys": shape.keys, "width": shape.width, "pitch": shape.pitch,
            "vector_head": forward.sources["vector_head"], "first_row": first + begin,
            "row_count": count, "ROWS": backward.launch.rows, "COLUMNS": backward.launch.columns,
        }  # fmt: skip
        additive_gradients_kernel[(groups, blocks, backward.sequences * parts)](
            forward.query, forward.key, forward.vector, prepared.query, prepared.key, turned, dquery, dvector,
            partial, *forward.split(prepared.reach), *backward.whole(prepared), **forward.sources | sums,
            **forward.tiles,
            queries=shape.queries, zero=0, parts=parts, part_tiles=part_tiles,
            dscores_head=turned.stride(0), turned_row=turned.stride(1),
            dquery_part=dquery.stride(0), dquery_head=dquery.stride(2), dvector_row=shape.width,
            APPROXIMATE=forward.approximate, LANES=32 * warps, num_warps=warps, maxnreg=128,
        )  # fmt: skip
        additive_key_sum_kernel[(-(-shape.keys // 8), -(-shape.width // 128), backward.key_sequences)](
            forward.vector, partial, backward.dkey, **sums,
            KEYS=8, WIDTH=128, ADD=first + begin > 0, num_warps=4,
        )  # fmt: skip
        of_vector.append(dvector)
    return place, of_vector
