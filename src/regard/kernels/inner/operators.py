"""Inner-product attention with masks: forward() and backward() launch the kernels.

inner_forward and inner_backward are the same as custom operators: torch.compile does not trace into them.
Outside of it, the functions take less time on the host. Extra memory is linear in T + S. The reductions use
no atomics, so results are reproducible bit by bit.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels import on_device
from regard.kernels.inner.backward import inner_key_backward_kernel, inner_query_backward_kernel
from regard.kernels.inner.forward import inner_forward_kernel
from regard.kernels.launch import in_eights, in_rows, power_of_two, precision_of, processors, steps

__all__ = ["Hidden", "Tiles", "backward", "forward", "inner_forward", "tiles_of"]


class Tiles(NamedTuple):
    """Launch parameters: queries and keys of a tile of scores, warps and pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


TILES: dict[tuple[str, str], dict[int, Tiles]] = {
    ("forward", "half"): {64: Tiles(128, 64, 4, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(64, 32, 4, 2)},
    ("query", "half"): {64: Tiles(64, 32, 4, 3), 128: Tiles(64, 32, 4, 3), 256: Tiles(64, 32, 8, 1)},
    ("key", "half"): {64: Tiles(64, 64, 4, 2), 128: Tiles(64, 64, 4, 2), 256: Tiles(32, 64, 8, 1)},
    ("forward", "float32"): {64: Tiles(64, 32, 4, 2), 128: Tiles(32, 32, 4, 2), 256: Tiles(16, 32, 4, 1)},
    ("query", "float32"): {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 4, 1), 256: Tiles(16, 16, 4, 1)},
    ("key", "float32"): {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 4, 1), 256: Tiles(16, 16, 4, 1)},
}
"""Tile sizes by kernel and dtype, then by the largest width of a head that they are for. Those for half
precision and widths up to 128 were chosen by timing on an H200."""

SMALL_TILES = {("forward", "half"): {64: Tiles(64, 64, 4, 3)}, ("key", "half"): {64: Tiles(32, 64, 4, 2)}}
"""Other tile sizes for windows with a left limit. With small tiles, fewer tiles are at the edges of the mask.
Chosen by timing on an H200."""


class Hidden(NamedTuple):
    """The mask of a call: which keys j the query at position i may attend to.

    lengths: keys j < length are visible, (B,) or (1,).
    start: position of the first query.
    left, right: keys i - left <= j <= i + right are visible; a causal mask has right = 0.

    A key is visible if all parts allow it. None means no restriction.
    """

    lengths: Tensor | None
    start: int
    left: int | None
    right: int | None


def up(width: int) -> int:
    """Return the next power of two that a matrix product takes, at least 16."""
    return max(16, power_of_two(width))


def tiles_of(kernel: str, query: Tensor, key: Tensor, value: Tensor, hidden: Hidden) -> Tiles:
    """Return the launch parameters of a kernel: "forward", "query" or "key" (backward pass)."""
    dtype = "float32" if query.dtype == torch.float32 else "half"
    widest = max(up(query.shape[3]), up(value.shape[3]))
    sizes = TILES[kernel, dtype]
    if hidden.left is not None:
        sizes = sizes | SMALL_TILES.get((kernel, dtype), {})
    tiles = next(tiles for width, tiles in sizes.items() if widest <= width)
    rows, columns = min(tiles.rows, up(query.shape[2])), min(tiles.columns, up(key.shape[2]))
    sequences = query.shape[0] * query.shape[1]
    while rows > 64 and sequences * -(-query.shape[2] // rows) < processors(query.device):
        rows //= 2
    shrunk = tiles.rows * tiles.columns // (rows * columns)
    stage = columns * 2 * widest * query.element_size()  # a tile of keys and one of values
    stages = max(1, min(tiles.stages, shared_memory(query.device) // stage - 1))
    return Tiles(rows, columns, max(1, tiles.warps // shrunk), stages)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Return the shared memory of a multiprocessor in bytes; that of an H200 for the CPU (interpreter)."""
    room = 227 << 10
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 << 10)
    return room


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    value: (B, K, S, E).
    lengths, start, left, right: the mask, as in Hidden.
    scale: factor of the inner product.

    A query that sees no key gets output 0 and lse -inf. Hidden keys and values may be NaN.
    """
    query, key, value = map(in_rows, (query, key, value))
    hidden = Hidden(lengths, start, left, right)
    tiles = tiles_of("forward", query, key, value, hidden)
    output = _like(query, query.shape[2], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    with on_device(query):
        programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // tiles.rows)
        inner_forward_kernel[(programs,)](
            query, key, value, output, lse, query if lengths is None else lengths,
            **_sizes(hidden, query, key, value, scale), **steps("output", output),
            **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
    return output, lse


def backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward pass of forward(): return the gradients of query, key and value.

    doutput: gradient of the output. output, lse: the results of forward().
    """
    doutput, query, key, value = map(in_rows, (doutput, query, key, value))
    dquery, dkey, dvalue = (_like(each, *each.shape[2:]) for each in (query, key, value))
    delta, hidden = torch.empty_like(lse), Hidden(lengths, start, left, right)
    of_keys = query if lengths is None else lengths
    sizes = {**_sizes(hidden, query, key, value, scale), **steps("doutput", doutput)}
    with on_device(query):
        tiles = tiles_of("query", query, key, value, hidden)
        programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // tiles.rows)
        inner_query_backward_kernel[(programs,)](
            query, key, value, output, lse, of_keys, doutput, dquery, delta, **sizes,
            **steps("output", output), **steps("dquery", dquery),
            **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
        tiles = tiles_of("key", query, key, value, hidden)
        programs = key.shape[0] * key.shape[1] * -(-key.shape[2] // tiles.columns)
        inner_key_backward_kernel[(programs,)](
            query, key, value, lse, of_keys, doutput, delta, dkey, dvalue, **sizes, **steps("dkey", dkey),
            **steps("dvalue", dvalue), **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
    return dquery, dkey, dvalue


def _sizes(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, scale: float) -> dict[str, Any]:
    """Return the position of the queries, the window, sizes, and the strides of query, key and value."""
    lengths = hidden.lengths
    length_step = 0 if lengths is None or lengths.shape[0] == 1 else lengths.stride(0)
    return {
        "start": hidden.start, "left": hidden.left or 0, "right": hidden.right or 0,
        "queries": query.shape[2], "keys": key.shape[2], "heads": query.shape[1],
        "groups": query.shape[1] // key.shape[1], "length_step": length_step, "scale": scale,
        "width": query.shape[3], "depth": value.shape[3],
        **steps("query", query), **steps("key", key), **steps("value", value),
    }  # fmt: skip


def _constants(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel, and its launch parameters."""
    return {
        "LENGTHS": hidden.lengths is not None,
        "LEFT": hidden.left is not None,
        "RIGHT": hidden.right is not None,
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "WIDTH": up(query.shape[3]),
        "DEPTH": up(value.shape[3]),
        "EIGHTS": in_eights(query, key, value),
        "PRECISION": precision_of(query),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _like(tensor: Tensor, rows: int, width: int) -> Tensor:
    """Allocate (B, H, rows, width) with heads before or after rows in memory, as in `tensor`."""
    batch, heads = tensor.shape[:2]
    if tensor.stride(1) < tensor.stride(2):
        return tensor.new_empty(batch, rows, heads, width).transpose(1, 2)
    return tensor.new_empty(batch, heads, rows, width)


_MASK = "Tensor? lengths, SymInt start, SymInt? left, SymInt? right, float scale"


inner_forward = torch.library.custom_op(
    "regard::inner_forward",
    forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_MASK}) -> (Tensor output, Tensor lse)",
)


@inner_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return _like(query, query.shape[2], value.shape[3]), lse


inner_backward = torch.library.custom_op(
    "regard::inner_backward",
    backward,
    mutates_args=(),
    schema=f"(Tensor doutput, Tensor query, Tensor key, Tensor value, {_MASK}, Tensor output, Tensor lse)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue)",
)


@inner_backward.register_fake
def _(doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (query, key, value))
