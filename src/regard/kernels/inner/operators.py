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
from regard.kernels.inner.masks import DocumentRanges, Listing
from regard.kernels.launch import in_eights, in_rows, power_of_two, precision_of, processors, steps

__all__ = ["Hidden", "Tiles", "backward", "forward", "inner_forward", "tiles_of"]

FEW_KEYS = 128
"""If there are more keys than this, another kernel can run first. If the mask is only a bool tensor, it lists
the visible tiles (masks.py). If the mask has documents and no bool tensor, it finds the range of keys
of each tile of queries (masks.py)."""


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

LISTED_TILES = {("query", "half"): {64: Tiles(64, 64, 4, 2)}}
"""Other tile sizes for bool tensors whose visible tiles are listed; see Hidden.lists_tiles()."""

SMALL_TILES = {("forward", "half"): {64: Tiles(64, 64, 4, 3)}, ("key", "half"): {64: Tiles(32, 64, 4, 2)}}
"""Other tile sizes for documents and for windows with a left limit. With small tiles, fewer tiles are at the
edges of the mask, and more tiles of queries lie in one document. Chosen by timing on an H200."""


class Hidden(NamedTuple):
    """The mask of a call: which keys j the query at position i may attend to.

    lengths: keys j < length are visible, (B,) or (1,).
    table: a bool tensor that broadcasts to (B, H, T, S).
    document_of_query, document_of_key: document id of each position, (B or 1, N).
    start: position of the first query.
    left, right: keys i - left <= j <= i + right are visible; a causal mask has right = 0.

    A key is visible if all parts allow it. None means no restriction.
    """

    lengths: Tensor | None
    table: Tensor | None
    document_of_query: Tensor | None
    document_of_key: Tensor | None
    start: int
    left: int | None
    right: int | None

    @property
    def reads_values(self) -> bool:
        """Whether a kernel must read the mask to find keys that no query of a tile sees.

        Lengths and windows hide keys by their position.
        """
        return self.document_of_query is not None or self.table is not None

    def lists_tiles(self, keys: int) -> bool:
        """Whether lists of visible tiles are created: if the mask is only a bool tensor, with many keys."""
        others = (self.lengths, self.document_of_query, self.left, self.right)
        return self.table is not None and keys > FEW_KEYS and all(each is None for each in others)

    def finds_ranges(self, keys: int) -> bool:
        """Whether inner_documents_kernel runs first: for documents with many keys, without a bool tensor."""
        return self.document_of_query is not None and self.table is None and keys > FEW_KEYS


def up(width: int) -> int:
    """Return the next power of two that a matrix product takes, at least 16."""
    return max(16, power_of_two(width))


def tiles_of(kernel: str, query: Tensor, key: Tensor, value: Tensor, hidden: Hidden) -> Tiles:
    """Return the launch parameters of a kernel: "forward", "query" or "key" (backward pass)."""
    dtype = "float32" if query.dtype == torch.float32 else "half"
    widest = max(up(query.shape[3]), up(value.shape[3]))
    sizes = TILES[kernel, dtype]
    if hidden.lists_tiles(key.shape[2]):
        sizes = sizes | LISTED_TILES.get((kernel, dtype), {})
    elif hidden.left is not None or hidden.document_of_query is not None:
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


def forward(query: Tensor, key: Tensor, value: Tensor, hidden: Hidden, scale: float) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    query: (B, H, T, D); key: (B, K, S, D), with K key heads; value: (B, K, S, E).
    scale: factor of the inner product.
    """
    query, key, value = map(in_rows, (query, key, value))
    tiles = tiles_of("forward", query, key, value, hidden)
    output = _like(query, query.shape[2], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    with on_device(query):
        masks, mask_steps = _mask_arguments(hidden, query, key, tiles)
        programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // tiles.rows)
        _launch(
            inner_forward_kernel, programs, (query, key, value, output, lse, *masks),
            **_sizes(hidden, query, key, value, scale), **mask_steps, **steps("output", output),
            **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
    return output, lse


def backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    hidden: Hidden,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value.

    doutput: gradient of the output. output, lse: the results of forward(). The others: as in forward().
    """
    doutput, query, key, value = map(in_rows, (doutput, query, key, value))
    dquery, dkey, dvalue = (_like(each, *each.shape[2:]) for each in (query, key, value))
    delta = torch.empty_like(lse)
    sizes = {**_sizes(hidden, query, key, value, scale), **steps("doutput", doutput)}
    with on_device(query):
        tiles = tiles_of("query", query, key, value, hidden)
        masks, mask_steps = _mask_arguments(hidden, query, key, tiles)
        programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // tiles.rows)
        _launch(
            inner_query_backward_kernel, programs,
            (query, key, value, output, lse, *masks, doutput, dquery, delta), **sizes, **mask_steps,
            **steps("output", output), **steps("dquery", dquery),
            **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
        tiles = tiles_of("key", query, key, value, hidden)
        masks, mask_steps = _mask_arguments(hidden, query, key, tiles, turned=True, words=masks[1])
        programs = key.shape[0] * key.shape[1] * -(-key.shape[2] // tiles.columns)
        _launch(
            inner_key_backward_kernel, programs,
            (query, key, value, lse, *masks, doutput, delta, dkey, dvalue), **sizes, **mask_steps,
            **steps("dkey", dkey), **steps("dvalue", dvalue),
            **_constants(hidden, query, key, value, tiles),
        )  # fmt: skip
    return dquery, dkey, dvalue


def _launch(kernel: Any, programs: int, tensors: tuple[Tensor | None, ...], **named: Any) -> None:
    """Launch a kernel. tensors: its first arguments; None for those that it does not read."""
    unused = tensors[0]
    kernel[(programs,)](*(unused if each is None else each for each in tensors), **named)


def _mask_arguments(
    hidden: Hidden,
    query: Tensor,
    key: Tensor,
    tiles: Tiles,
    turned: bool = False,
    words: Tensor | None = None,
) -> tuple[tuple[Tensor | None, ...], dict[str, int]]:
    """Return the tensors of the mask that a kernel reads, and their strides.

    The tensors are lengths, table, document ids of queries and of keys, and lists of visible tiles. If the
    tiles are listed, the table is packed to words, see masks.py.

    turned: whether to list the tiles of queries for each tile of keys.
    words: the packed words, if another kernel of the same call has them.
    """
    lengths, table, of_query, of_key, start, *_ = hidden
    sizes, lists = (query.shape[2], key.shape[2]), None
    table_steps: tuple[int, ...] = (0, 0, 0, 0)
    list_steps: tuple[int, ...] = (0, 0, 0, 0)
    if table is not None and hidden.lists_tiles(key.shape[2]):
        listing = Listing(table, sizes, tiles.rows, tiles.columns, turned)
        lists = listing.run(words if turned and words is not None else table)
        table = words if turned else lists
        table_steps, list_steps = (*listing.word_steps, 0), listing.steps
    elif table is not None:
        table_steps = _broadcast_steps(table)
        table = table.view(torch.uint8)
    elif hidden.finds_ranges(key.shape[2]) and of_query is not None and of_key is not None:
        ranges = DocumentRanges((of_query, of_key), sizes, tiles.columns if turned else tiles.rows, turned)
        lists, list_steps = ranges.run(of_query, of_key, start), ranges.steps
    names = ("table_batch", "table_head", "table_row", "table_column")
    steps = dict(zip(names, table_steps, strict=True))
    steps |= zip(("lists_batch", "lists_head", "others", "records"), list_steps, strict=True)
    steps |= {"documents_query_step": _step(of_query), "documents_key_step": _step(of_key)}
    return (lengths, table, of_query, of_key, lists), steps


def _sizes(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, scale: float) -> dict[str, Any]:
    """Return the position of the queries, the window, sizes, and the strides of query, key and value."""
    return {
        "start": hidden.start, "left": hidden.left or 0, "right": hidden.right or 0,
        "queries": query.shape[2], "keys": key.shape[2], "heads": query.shape[1],
        "groups": query.shape[1] // key.shape[1], "length_step": _step(hidden.lengths), "scale": scale,
        "width": query.shape[3], "depth": value.shape[3],
        **steps("query", query), **steps("key", key), **steps("value", value),
    }  # fmt: skip


def _broadcast_steps(table: Tensor) -> tuple[int, ...]:
    """Return the strides of a table, 0 in dimensions that are broadcast."""
    return tuple(step if size > 1 else 0 for step, size in zip(table.stride(), table.shape, strict=True))


def _step(tensor: Tensor | None) -> int:
    """Return the stride of lengths or document ids along the batch; 0 if all sequences share them."""
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor.stride(0)


def _constants(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel, and its launch parameters."""
    return {
        "LENGTHS": hidden.lengths is not None,
        "LEFT": hidden.left is not None,
        "RIGHT": hidden.right is not None,
        "DOCUMENTS": hidden.document_of_query is not None,
        "TABLE": hidden.table is not None,
        "LISTED": hidden.lists_tiles(key.shape[2]),
        "RANGED": hidden.finds_ranges(key.shape[2]),
        "WHOLE": hidden.table is not None and key.shape[2] % tiles.columns == 0,
        "REDUCE": hidden.reads_values,
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


_MASK = (
    "Tensor? lengths, Tensor? table, Tensor? document_of_query, Tensor? document_of_key, SymInt start, "
    "SymInt? left, SymInt? right, float scale"
)


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    table: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    value: (B, K, S, E).
    lengths, table, document_of_query, document_of_key, start, left, right: the mask, as in
        Hidden.
    scale: factor of the inner product.

    A query that sees no key gets output 0 and lse -inf. Hidden keys and values may be NaN.
    """
    hidden = Hidden(lengths, table, document_of_query, document_of_key, start, left, right)
    return forward(query, key, value, hidden, scale)


inner_forward = torch.library.custom_op(
    "regard::inner_forward",
    run_forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_MASK}) -> (Tensor output, Tensor lse)",
)


@inner_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    sizes = (batch, heads, queries, value.shape[3])
    if query.stride(1) < query.stride(2):
        output = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
    else:
        output = query.new_empty(sizes)
    return output, query.new_empty(sizes[:3], dtype=torch.float32)


def run_backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    table: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward pass of run_forward(): return the gradients of query, key and value.

    doutput: gradient of the output. output, lse: the results of run_forward().
    """
    hidden = Hidden(lengths, table, document_of_query, document_of_key, start, left, right)
    return backward(doutput, query, key, value, output, lse, hidden, scale)


inner_backward = torch.library.custom_op(
    "regard::inner_backward",
    run_backward,
    mutates_args=(),
    schema=f"(Tensor doutput, Tensor query, Tensor key, Tensor value, {_MASK}, Tensor output, Tensor lse)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue)",
)


@inner_backward.register_fake
def _(doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (query, key, value))
