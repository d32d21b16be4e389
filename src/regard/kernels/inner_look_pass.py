"""The looking pass for inner products as a custom operator, which torch.compile does not trace into."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.kernels.forward_pass import Sight, in_eights, in_rows, precision_of, steps
from regard.kernels.inner_look import inner_look_kernel
from regard.kernels.launch import processors

__all__ = ["inner_look"]


class Tiles(NamedTuple):
    """Launch parameters: queries and keys of a tile, warps and pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


FILL = 8
"""The queries are divided between this many programs per multiprocessor, if there are enough tiles."""

MOST_PROGRAMS = 32
"""Maximum number of programs per sequence and head. Each needs memory for the column mass, (S,)."""


def tiles_of(width: int, dtype: torch.dtype) -> Tiles:
    """Return the launch parameters for a head size and a dtype."""
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2) if width > 64 else Tiles(64, 64, 4, 2)
    return Tiles(64, 64, 4, 3 if width <= 128 else 2)


@torch.library.custom_op(
    "regard::inner_look",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor lse, Tensor? bias, Tensor? table, Tensor? lengths, "
    "Tensor? document_of_query, Tensor? document_of_key, SymInt start, SymInt? left, SymInt? right, "
    "float scale, float bias_scale, bool entropy, bool alignment, bool mass, SymInt pooled)"
    " -> (Tensor entropy, Tensor alignment, Tensor mass, Tensor pooled)",
)
def inner_look(
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
    bias_scale: float,
    entropy: bool,
    alignment: bool,
    mass: bool,
    pooled: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute entropy, alignment, column mass and pooled weights, each only if its argument is not 0.

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    lse: (B, H, T), the log-sum-exp of the scores of each query.
    bias: added to the scores, broadcastable to (B, H, T, S).
    table: a bool mask, broadcastable to (B, H, T, S).
    lengths, document_of_query, document_of_key, start, left, right: the mask, as in forward_pass.Sight.
    scale, bias_scale: factors of the inner product and of the bias.
    pooled: the block size of the pooled weights, a multiple of the tile size; 0 if they are not requested.

    Returns entropy (B, H, T), alignment (B, H, T), column mass (B, H, S), and the sums of the weights in
    blocks of pooled x pooled; empty tensors if not computed.
    """
    batch, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    query, key, lse = in_rows(query), in_rows(key), lse.float().contiguous()
    tiles = tiles_of(width, query.dtype)
    query_tiles = -(-queries // tiles.rows)
    programs = _programs(query_tiles, -(-FILL * processors(query.device) // (batch * heads)))
    results = _buffers(query, keys, programs, tiles, (entropy, alignment, mass, pooled > 0))
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        inner_look_kernel[(programs, batch * heads)](
            query,
            key,
            lse,
            query if bias is None else bias,
            query if table is None else table.view(torch.uint8),
            *results,
            **sight.whole(query),
            **steps("query", query),
            **steps("key", key),
            **_broadcast_steps("bias", bias, query, keys),
            **_broadcast_steps("table", table, query, keys),
            scale=scale,
            bias_scale=bias_scale,
            heads=heads,
            groups=heads // key_heads,
            queries=queries,
            keys=keys,
            width=width,
            query_tiles=query_tiles,
            programs=programs,
            BIAS=bias is not None,
            TABLE=table is not None,
            ENTROPY=entropy,
            ALIGNMENT=alignment,
            MASS=mass,
            POOLED=pooled > 0,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            WIDTH=max(16, 1 << (width - 1).bit_length()),
            EIGHTS=in_eights(query, key),
            PRECISION=precision_of(query),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    entropy_BHT, alignment_BHT, mass_PBHS, tiles_BHNM = results
    mass_BHS = mass_PBHS.sum(0) if mass else mass_PBHS
    return entropy_BHT, alignment_BHT, mass_BHS, _pooled_tiles(tiles_BHNM, pooled, tiles)


@inner_look.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    entropy, alignment, mass, pooled = rest[-4:]
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
    )


def _programs(query_tiles: int, needed: int) -> int:
    """Return the number of programs per sequence and head; `needed` fill the device."""
    return max(1, min(query_tiles, needed, MOST_PROGRAMS))


def _buffers(
    query: Tensor, keys: int, programs: int, tiles: Tiles, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """Return the tensors that the kernel writes: entropy, alignment, column mass and sums of tiles.

    wanted: for each of the four, whether it is requested. The others are empty.
    """
    batch, heads, queries, _ = query.shape
    grid = (batch, heads, -(-queries // tiles.rows), -(-keys // tiles.columns))
    entropy, alignment, mass, pooled = wanted
    return (
        query.new_empty((*grid[:2], queries) if entropy else 0, dtype=torch.float32),
        query.new_empty((*grid[:2], queries) if alignment else 0, dtype=torch.int64),
        query.new_zeros((programs, *grid[:2], keys) if mass else 0, dtype=torch.float32),
        query.new_zeros(grid if pooled else 0, dtype=torch.float32),
    )


def _pooled_tiles(tiles_BHNM: Tensor, size: int, tiles: Tiles) -> Tensor:
    """Add the sums of neighbouring tiles that form one block of size x size. If size is 0, change nothing."""
    if not size:
        return tiles_BHNM
    down, across = size // tiles.rows, size // tiles.columns
    rows, columns = tiles_BHNM.shape[-2:]
    padded = functional.pad(tiles_BHNM, (0, -columns % across, 0, -rows % down))
    return padded.unflatten(-1, (-1, across)).sum(-1).unflatten(-2, (-1, down)).sum(-2)


def _broadcast_steps(name: str, tensor: Tensor | None, query: Tensor, keys: int) -> dict[str, int]:
    """Broadcast a tensor to (B, H, T, S), and return its strides as keyword arguments of a kernel."""
    wide = None if tensor is None else tensor.expand(*query.shape[:3], keys)
    names = ("batch", "head", "row", "column")
    return {f"{name}_{each}": 0 if wide is None else wide.stride(at) for at, each in enumerate(names)}
