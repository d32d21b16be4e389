"""Launches of the kernels for inner-product attention: tile sizes, and arguments that calls share.

All that a launch needs, except for the tensors themselves and the position of the first query, depends on
shapes, strides and dtypes. It is computed once for each combination of them (Passes) and then kept, together
with the compiled kernels, because a launch by kernel[grid](...) takes longer on the host than the kernel on
the GPU. In Triton's interpreter the kernels run by kernel[grid](...).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.inner_backward import inner_key_backward_kernel, inner_query_backward_kernel
from regard.kernels.inner_backward_launch import BackwardLaunches
from regard.kernels.inner_documents import DocumentRanges
from regard.kernels.inner_forward import inner_forward_kernel
from regard.kernels.inner_kernel_launch import Launch, Lists
from regard.kernels.inner_table import Listing
from regard.kernels.launch import multiplies_tf32, processors

__all__ = ["Hidden", "Passes", "Tiles", "backward", "forward", "passes_of", "tiles_of"]

KEPT = 1024
"""Maximum number of kept Passes. When it is reached, all are removed."""


FEW_KEYS = 128
"""If there are more keys than this, another kernel can run first. If the mask is only a bool tensor, it lists
the visible tiles (inner_table.py). If the mask has documents and no bool tensor, it finds the range of keys
of each tile of queries (inner_documents.py)."""


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
    return max(16, 1 << (width - 1).bit_length())


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


def precision(query: Tensor) -> str:
    """Return the precision of matrix products in a kernel, see matrix_product.product()."""
    if query.dtype == torch.float32:
        return "tf32x3" if multiplies_tf32(query.device) and not interpreting() else "ieee"
    return "widened" if interpreting() else "tf32"


def _numbers(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Return sizes and the strides of query, key and value, in the order of the kernels' arguments."""
    _, heads, queries, width = query.shape
    sizes = (queries, key.shape[2], heads, heads // key.shape[1], _step(hidden.lengths))
    strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    return (*sizes, width, value.shape[3], *strides)


def _listing(hidden: Hidden, query: Tensor, key: Tensor, tiles: Tiles, turned: bool) -> Lists | None:
    """Return the launch that finds the visible tiles; None if it is not needed.

    turned: see Listing and DocumentRanges.
    """
    sizes = query.shape[2], key.shape[2]
    if hidden.table is not None and hidden.lists_tiles(sizes[1]):
        return Listing(hidden.table, sizes, tiles.rows, tiles.columns, turned)
    if hidden.finds_ranges(sizes[1]) and hidden.document_of_query is not None:
        assert hidden.document_of_key is not None
        ids = hidden.document_of_query, hidden.document_of_key
        return DocumentRanges(ids, sizes, tiles.columns if turned else tiles.rows, turned)
    return None


def _mask_steps(hidden: Hidden, listing: Lists | None) -> tuple[int, ...]:
    """Return the strides of the table, 0 in dimensions that are broadcast, of document ids and of lists."""
    steps: tuple[int, ...] = (0, 0, 0, 0)
    if isinstance(listing, Listing):
        steps = (*listing.word_steps, 0)
    elif (table := hidden.table) is not None:
        steps = tuple(step if size > 1 else 0 for step, size in zip(table.stride(), table.shape, strict=True))
    documents = _step(hidden.document_of_query), _step(hidden.document_of_key)
    return (*steps, *documents, *((0, 0, 0, 0) if listing is None else listing.steps))


def _step(tensor: Tensor | None) -> int:
    """Return the stride of lengths or document ids along the batch; 0 if all sequences share them."""
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor.stride(0)


def _constants(
    hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, eights: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel, in their order, and its launch parameters."""
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
        "EIGHTS": eights,
        "PRECISION": precision(query),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _in_eights(*tensors: Tensor) -> bool:
    """Whether all rows of the tensors start and end at a multiple of 8 elements, for vectorised loads."""
    sizes = (size for tensor in tensors for size in (*tensor.stride()[:3], tensor.shape[3]))
    return all(size % 8 == 0 for size in sizes) and not any(tensor.data_ptr() % 16 for tensor in tensors)


def _like(tensor: Tensor, rows: int, width: int) -> Tensor:
    """Allocate (B, H, rows, width) with heads before or after rows in memory, as in `tensor`."""
    batch, heads = tensor.shape[:2]
    if tensor.stride(1) < tensor.stride(2):
        return tensor.new_empty(batch, rows, heads, width).transpose(1, 2)
    return tensor.new_empty(batch, heads, rows, width)


def _forward_launch(hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> Launch:
    tiles = tiles_of("forward", query, key, value, hidden)
    numbers = _numbers(hidden, query, key, value)
    listing = _listing(hidden, query, key, tiles, turned=False)
    numbers += (*output.stride()[:3], *_mask_steps(hidden, listing))
    constants = _constants(hidden, query, key, value, tiles, _in_eights(query, key, value))
    programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // tiles.rows)
    return Launch(inner_forward_kernel, programs, numbers, constants, listing)


def _backward_launches(
    hidden: Hidden, query: Tensor, key: Tensor, value: Tensor, output: Tensor, doutput: Tensor,
    dquery: Tensor, dkey: Tensor, dvalue: Tensor,
) -> BackwardLaunches:  # fmt: skip
    numbers, eights = _numbers(hidden, query, key, value), _in_eights(query, key, value)
    of_query, of_key = (tiles_of(kernel, query, key, value, hidden) for kernel in ("query", "key"))
    key_listing = _listing(hidden, query, key, of_query, turned=False)
    query_listing = _listing(hidden, query, key, of_key, turned=True)
    masks = _mask_steps(hidden, key_listing)
    from_rows = (*output.stride()[:3], *masks, *doutput.stride()[:3], *dquery.stride()[:3])
    masks = _mask_steps(hidden, query_listing)
    from_keys = (*masks, *doutput.stride()[:3], *dkey.stride()[:3], *dvalue.stride()[:3])
    query_programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // of_query.rows)
    key_programs = key.shape[0] * key.shape[1] * -(-key.shape[2] // of_key.columns)
    shared = (hidden, query, key, value)
    return BackwardLaunches(
        Launch(
            inner_query_backward_kernel,
            query_programs,
            numbers + from_rows,
            _constants(*shared, of_query, eights),
            key_listing,
        ),
        Launch(
            inner_key_backward_kernel,
            key_programs,
            numbers + from_keys,
            _constants(*shared, of_key, eights),
            query_listing,
        ),
    )


class Passes:
    """Forward and backward pass for query, key, value and mask of one layout.

    What they allocate and launch is computed once, and then kept. The caller must pass tensors of the same
    shapes, strides, dtypes, device and alignment as in __init__(), and a mask with the same parts.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, hidden: Hidden):
        self.layout = _layout(query, key, value, hidden)
        self.copies = any(each.stride(-1) != 1 for each in (query, key, value))
        query, key, value = map(_in_rows, (query, key, value))
        output = _like(query, query.shape[2], value.shape[3])
        self.output = tuple(output.shape), output.stride()
        self.like_query = _is_like(output, query)
        self.rows = tuple(query.shape[:3])
        gradients = [_like(each, *each.shape[2:]) for each in (query, key, value)]
        self.gradients = [(tuple(each.shape), each.stride()) for each in gradients]
        self.like_inputs = all(map(_is_like, gradients, (query, key, value)))
        self.device, self.index = query.device, query.device.index if query.is_cuda else None
        self.launch = _forward_launch(hidden, query, key, value, output)
        self.launches: dict[tuple[Any, ...], BackwardLaunches] = {}

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, hidden: Hidden, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return output (B, H, T, E) and lse (B, H, T)."""
        if self.index is not None and torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.device):  # kernels are launched on the current device
                return self.forward(query, key, value, hidden, scale)
        if self.copies:
            query, key, value = _in_rows(query), _in_rows(key), _in_rows(value)
        output = torch.empty_like(query) if self.like_query else query.new_empty_strided(*self.output)
        lse = torch.empty(self.rows, dtype=torch.float32, device=self.device)
        launch = self.launch
        tensors = (query, key, value, output, lse, *launch.masks(hidden))
        launch.run(tensors, lse, hidden[4:], scale, self.index)
        return output, lse

    def backward(
        self, doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor,
        hidden: tuple[Any, ...], scale: float, same: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the gradients of query, key and value.

        doutput: gradient of the output. output, lse: the results of forward(). hidden: the fields of Hidden.
        same: whether the tensors are those of forward(). Saved tensors can have another layout, for example
            with save_on_cpu().
        """
        if not same and _layout(query, key, value, hidden) != self.layout:
            others = passes_of(query, key, value, Hidden(*hidden))
            return others.backward(doutput, query, key, value, output, lse, hidden, scale)
        if self.index is not None and torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.device):
                return self.backward(doutput, query, key, value, output, lse, hidden, scale)
        if self.copies:
            query, key, value = _in_rows(query), _in_rows(key), _in_rows(value)
        doutput = _in_rows(doutput)
        if self.like_inputs:  # takes less time on the host
            dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        else:
            of_query, of_key, of_value = self.gradients
            dquery = query.new_empty_strided(*of_query)
            dkey, dvalue = key.new_empty_strided(*of_key), value.new_empty_strided(*of_value)
        delta = torch.empty_like(lse)
        layout = (doutput.stride(), output.stride(), doutput.data_ptr() % 16, output.data_ptr() % 16)
        launches = self.launches.get(layout)
        if launches is None:
            launches = self.launches[layout] = _backward_launches(
                Hidden(*hidden), query, key, value, output, doutput, dquery, dkey, dvalue
            )
        tensors = (query, key, value, output, lse, doutput, dquery, delta, dkey, dvalue)
        launches.run(tensors, hidden, scale, self.index)
        return dquery, dkey, dvalue


def _is_like(tensor: Tensor, other: Tensor) -> bool:
    """Whether empty_like(other) has the shape, the strides and the dtype of this tensor."""
    like = torch.empty_like(other)
    return (like.shape, like.stride(), like.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)


def _in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with stride 1 in its last dimension, as the kernels assume; copied if necessary."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _layout(query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return strides and alignment of all tensors, and which parts the mask has."""
    lengths, table, of_query, of_key, _, left, right = hidden
    return (
        query.stride(), query.data_ptr() % 16, key.stride(), key.data_ptr() % 16,
        value.stride(), value.data_ptr() % 16, left is None, right is None,
        lengths if lengths is None else (lengths.stride(), lengths.data_ptr() % 16),
        table if table is None else (table.stride(), table.data_ptr() % 16),
        of_query if of_query is None else (of_query.stride(), of_query.data_ptr() % 16),
        of_key if of_key is None else (of_key.stride(), of_key.data_ptr() % 16),
    )  # fmt: skip


_kept: dict[tuple[Any, ...], Passes] = {}


def passes_of(query: Tensor, key: Tensor, value: Tensor, hidden: Hidden) -> Passes:
    """Return the passes for tensors of these shapes, strides and dtypes; created once and kept."""
    shapes = (each if each is None else (each.shape, each.dtype) for each in (query, key, value, *hidden[:4]))
    layout = (query.device, *_layout(query, key, value, hidden), *shapes)
    passes = _kept.get(layout)
    if passes is None:
        if len(_kept) >= KEPT:
            _kept.clear()
        passes = _kept[layout] = Passes(query, key, value, hidden)
    return passes


def forward(query: Tensor, key: Tensor, value: Tensor, hidden: Hidden, scale: float) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    query: (B, H, T, D); key: (B, K, S, D), with K key heads; value: (B, K, S, E).
    scale: factor of the inner product.
    """
    return passes_of(query, key, value, hidden).forward(query, key, value, hidden, scale)


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
    passes = passes_of(query, key, value, hidden)
    return passes.backward(doutput, query, key, value, output, lse, hidden, scale)
