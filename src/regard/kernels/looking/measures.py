"""The looking pass for inner products as a custom operator, which torch.compile does not trace into."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.kernels import interpreting
from regard.kernels.additive.forward import Sight, in_eights, in_rows, precision_of, steps
from regard.kernels.looking.measure_kernels import inner_look_kernel, inner_mass_kernel

__all__ = [
    "ARGUMENTS",
    "QUADS",
    "Tiles",
    "broadcast_steps",
    "has_tma",
    "inner_look",
    "key_block",
    "on_hopper",
    "run_inner_look",
    "slots_of",
    "tiles_of",
]


class Tiles(NamedTuple):
    """Launch parameters of inner_look_kernel.

    rows, columns: number of queries and of keys in a tile.
    warps, stages: number of warps and of pipeline stages.
    groups: number of groups of queries in a tile; a group is computed by its own warps.
    registers: maximum number of registers per thread; None for no limit.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    groups: int = 1
    registers: int | None = None


ARGUMENTS = (
    "Tensor query, Tensor key, Tensor lse, Tensor? bias, Tensor? table, Tensor? lengths, "
    "Tensor? document_of_query, Tensor? document_of_key, SymInt start, SymInt? left, SymInt? right, "
    "float scale, float cap, float bias_scale"
)
"""The arguments of inner_look() and inner_top() that define the weights, as part of their schemas."""

QUADS = (4, 1, 64)
"""Warps, groups and columns of the tiles whose column mass is added without moving it between threads, see
_add_mass() in measure_kernels.py. In tiles of 128 keys, this takes more registers and is slower."""

BLOCK = 64
"""Number of keys of a block, for which the kernel returns the sum of the weights; fewer in a smaller tile."""

MASS_BLOCK = 1024
"""Number of elements of the column mass that one program converts."""

MOST_HEADS = 1 << 14
"""Maximum number B K of key heads for which a tensor descriptor is used."""


SHORT = 2048
"""Queries that see at most this many keys on average use the tiles for short sequences."""

HALVES = 4096
"""Up to this number of keys per query, the kernel keeps which key of a slot is the largest."""

TILES: dict[tuple[int, bool, bool], Tiles] = {
    (128, False, False): Tiles(64, 64, 4, 3),
    (128, False, True): Tiles(64, 64, 4, 3),
    (128, True, False): Tiles(64, 64, 4, 3, registers=168),
    (128, True, True): Tiles(64, 64, 4, 3, registers=168),
    (64, False, False): Tiles(64, 128, 4, 2, registers=128),
    (64, False, True): Tiles(64, 64, 4, 3, registers=128),
    (64, True, False): Tiles(64, 128, 4, 3, registers=168),
    (64, True, True): Tiles(64, 64, 4, 3, registers=128),
}
"""(largest head size, several looks at once, short sequences) -> launch parameters for 16-bit inputs, the
fastest of those measured on an H200."""


def tiles_of(width: int, dtype: torch.dtype, looks: int = 3, keys: int = SHORT + 1) -> Tiles:
    """Return the launch parameters for a head size, a dtype and a number of looks.

    keys: number of keys that a query sees on average.
    """
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2) if width > 64 else Tiles(64, 64, 4, 2)
    if width > 128:
        return Tiles(64, 64, 4, 2)
    return TILES[128 if width > 64 else 64, looks > 1, keys <= SHORT]


def slots_of(tiles: Tiles) -> int:
    """Return the number of slots of a tile: sets of 2 or 4 keys, see measure_kernels.py."""
    return 32 if tiles.columns == 128 else tiles.columns // 2


def run_inner_look(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    cap: float,
    bias_scale: float,
    entropy: bool,
    alignment: bool,
    mass: bool,
    pooled: int,
    maxima: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute entropy, alignment, column mass, pooled weights and maxima, each only if it is requested.

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    lse: (B, H, T), the log-sum-exp of the scores of each query.
    bias: added to the scores, broadcastable to (B, H, T, S).
    table: a bool mask, broadcastable to (B, H, T, S).
    lengths, document_of_query, document_of_key, start, left, right: the mask, as in additive/forward.Sight.
    scale: factor of the inner product.
    cap: the soft cap of the scores; 0 for no cap.
    bias_scale: factor of the score, after the cap and with the bias: 1 / temperature.
    pooled: the block size of the pooled weights, a multiple of the tile size; 0 if they are not requested.
    maxima: whether to return log2 of the largest weight of each slot, for inner_top(). A slot is a set of
        keys, see measure_kernels.py. Not together with `alignment`.

    Returns entropy (B, H, T), alignment (B, H, T), column mass (B, H, S), the sums of the weights in blocks
    of pooled x pooled, and the maxima (B, H, T, slots); empty tensors if not computed.
    """
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    looks = entropy + alignment + mass + (pooled > 0) + maxima
    padded = max(16, 1 << (width - 1).bit_length())
    seen = keys if right is None else keys // 2
    tiles = tiles_of(width, query.dtype, looks, seen)
    blocks, (unit, nan_units) = max(1, tiles.columns // BLOCK), _units(queries)
    results = _buffers(query, keys, tiles, (entropy, alignment, mass, pooled > 0, maxima))
    block = key_block(key, tiles) if width == padded and has_tma(query.device) else None
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        inner_look_kernel[(-(-queries // tiles.rows), batch * heads)](
            query, key, key if block is None else block, lse, query if bias is None else bias,
            query if table is None else table.view(torch.uint8), *results,
            **sight.whole(query), **steps("query", query), **steps("key", key),
            **broadcast_steps("bias", bias, query, keys), **broadcast_steps("table", table, query, keys),
            scale=scale, cap=cap, bias_scale=bias_scale, unit=unit, nan_units=nan_units,
            heads=heads, groups=heads // key_heads, queries=queries, keys=keys, width=width,
            CAP=cap > 0, BIAS=bias is not None, TABLE=table is not None,
            ENTROPY=entropy, ALIGNMENT=alignment, MAXIMA=maxima, MASS=mass, POOLED=pooled > 0,
            ROWS=tiles.rows, COLUMNS=tiles.columns, WIDTH=padded, GROUPS=tiles.groups, BLOCKS=blocks,
            WHOLE=width == padded, EIGHTS=in_eights(query, key), TMA=block is not None,
            PRECISION=precision_of(query), ASSEMBLY=not interpreting(),
            HALVES=tiles.columns < 128 and seen <= HALVES,
            QUADS=block is not None and bias is None and table is None and document_of_query is None
            and on_hopper(query.device) and (tiles.warps, tiles.groups, tiles.columns) == QUADS,
            num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers,
        )  # fmt: skip
        entropy_BHT, alignment_BHT, units_BHS, blocks_BHNM, maxima_BHTK = results
        mass_BHS = torch.empty_like(units_BHS, dtype=torch.float32)
        if mass:
            inner_mass_kernel[(-(-units_BHS.numel() // MASS_BLOCK),)](
                units_BHS, mass_BHS, units_BHS.numel(), unit, nan_units, BLOCK=MASS_BLOCK
            )
    pooled_BHNM = _pooled_blocks(blocks_BHNM, queries, pooled, tiles)
    return entropy_BHT, alignment_BHT, mass_BHS, pooled_BHNM, maxima_BHTK


inner_look = torch.library.custom_op(
    "regard::inner_look",
    mutates_args=(),
    schema=f"({ARGUMENTS}, bool entropy, bool alignment, bool mass, SymInt pooled, bool maxima)"
    " -> (Tensor entropy, Tensor alignment, Tensor mass, Tensor pooled, Tensor maxima)",
)(run_inner_look)
"""run_inner_look() as an operator, which torch.compile does not trace into."""


@inner_look.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    entropy, alignment, mass, pooled, maxima = rest[-5:]
    slots = slots_of(tiles_of(query.shape[3], query.dtype))
    sizes = query.shape[:3]
    return (
        query.new_empty(sizes if entropy else 0, dtype=torch.float32),
        query.new_empty(sizes if alignment else 0, dtype=torch.int64),
        query.new_empty((*query.shape[:2], key.shape[2]) if mass else 0, dtype=torch.float32),
        query.new_empty(
            (*query.shape[:2], *(-(-each // pooled) for each in (query.shape[2], key.shape[2])))
            if pooled
            else 0,
            dtype=torch.float32,
        ),
        query.new_empty((*sizes, slots) if maxima else 0, dtype=torch.float32),
    )


def has_tma(device: torch.device) -> bool:
    """Whether the device has a tensor memory accelerator, which copies tiles to shared memory."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def on_hopper(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU, whose matrix products leave their results as QUADS requires."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def key_block(key: Tensor, tiles: Tiles) -> Any:
    """Return a tensor descriptor of the keys, (B, K, S, D), with which a kernel loads tiles of keys.

    Returns None if it is not possible: see _matrix_size(); and each row must be aligned to 16 bytes.
    """
    size = _matrix_size(tuple(key.shape), tuple(key.stride()))
    if size is None or not in_eights(key) or key.element_size() != 2:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(key, list(size), [key.stride(2), 1], [tiles.columns, key.shape[3]])


@functools.cache
def _matrix_size(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the size of a matrix that contains the keys of every head as a block of S rows and D columns.

    A row of the matrix has the stride of a key. The element at the offset i has the row i // stride and the
    column i % stride. Returns None if the keys of a head are not such a block.

    >>> _matrix_size((2, 4, 10, 64), (2560, 640, 64, 1))  # all keys of a head, then the next head
    (80, 64)
    >>> _matrix_size((2, 4, 10, 64), (2560, 64, 256, 1))  # all heads of a key, then the next key
    (20, 256)
    """
    batch, heads, keys, width = shape
    stride = strides[2]
    if stride < width or batch * heads > MOST_HEADS:
        return None
    firsts = [each * strides[0] + head * strides[1] for each in range(batch) for head in range(heads)]
    columns = max(first % stride for first in firsts) + width
    rows = max(first // stride for first in firsts) + keys
    return (rows, columns) if columns <= stride and rows < 1 << 31 else None


def _buffers(query: Tensor, keys: int, tiles: Tiles, wanted: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that the kernel writes: entropy, alignment, column mass, sums of blocks and maxima.

    wanted: for each of the five, whether it is requested. The others are empty.
    """
    batch, heads, queries, _ = query.shape
    rows, columns = -(-queries // tiles.rows) * tiles.groups, -(-keys // min(tiles.columns, BLOCK))
    entropy, alignment, mass, pooled, maxima = wanted
    return (
        query.new_empty((batch, heads, queries) if entropy else 0, dtype=torch.float32),
        query.new_empty((batch, heads, queries) if alignment else 0, dtype=torch.int64),
        query.new_zeros((batch, heads, keys) if mass else 0, dtype=torch.int64),
        query.new_zeros((batch, heads, rows, columns) if pooled else 0, dtype=torch.float32),
        query.new_empty((batch, heads, queries, slots_of(tiles)) if maxima else 0, dtype=torch.float32),
    )


def _units(queries: int) -> tuple[float, float]:
    """Return unit and nan_units: the kernel adds the column mass as multiples of 1 / unit, in 64 bits.

    nan_units is added if a sum of weights is NaN. It is more than the mass of all queries, and it can be
    added once for every 32 queries without an overflow.

    >>> _units(1000) == (2.0**40, 2.0**51), _units(1 << 17) == (2.0**31, 2.0**49)
    (True, True)
    """
    bits = max(queries - 1, 1).bit_length()
    unit = 2.0 ** min(40, 65 - 2 * bits)
    return unit, unit * 2.0 ** (bits + 1)


def _pooled_blocks(blocks_BHNM: Tensor, queries: int, size: int, tiles: Tiles) -> Tensor:
    """Add the sums of neighbouring blocks that form one of size x size. If size is 0, change nothing."""
    if not size:
        return blocks_BHNM
    down, across = size * tiles.groups // tiles.rows, size // min(tiles.columns, BLOCK)
    rows, columns = blocks_BHNM.shape[-2:]
    padded = functional.pad(blocks_BHNM, (0, -columns % across, 0, -rows % down))
    pooled = padded.unflatten(-1, (-1, across)).sum(-1).unflatten(-2, (-1, down)).sum(-2)
    return pooled[:, :, : -(-queries // size)]  # the last tile can have groups without queries


def broadcast_steps(name: str, tensor: Tensor | None, query: Tensor, keys: int) -> dict[str, int]:
    """Broadcast a tensor to (B, H, T, S), and return its strides as keyword arguments of a kernel."""
    wide = None if tensor is None else tensor.expand(*query.shape[:3], keys)
    names = ("batch", "head", "row", "column")
    return {f"{name}_{each}": 0 if wide is None else wide.stride(at) for at, each in enumerate(names)}
