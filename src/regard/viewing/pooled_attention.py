"""Pooled: the attention of long sequences, kept so that no matrix of T x S need ever exist.

Of each row the largest weights are kept with their keys, and of all weights together a map of blocks: the
largest and the mean of each. 8,192 tokens are 67 million weights; the map and the 32 largest of each row are
0.7 million numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights

__all__ = ["MAP", "Pooled", "largest", "pooled", "pooled_from_top"]

MAP = 256
"""The most blocks along a side of the map."""

STRIP = 2**22
"""How many weights of a whole array are worked on at once."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """One place of attention in a long sequence: see `pooled` and `pooled_from_top`, which make it.

    keys, weights: (H, T, k), the largest weights of each row and where they fell, largest first; -1 and 0
    where there are fewer. maxima, means: (H, t, s), of blocks, t and s at most 256. whole: whether the map
    was made from all weights; otherwise it was made from the largest alone, and the means leave out the rest.
    """

    name: str
    keys: NDArray[numpy.int32]
    weights: NDArray[numpy.float32]
    maxima: NDArray[numpy.float32]
    means: NDArray[numpy.float32]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    whole: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        heads, rows, kept = self.weights.shape
        sizes = (heads, _blocks(rows), _blocks(len(self.columns)))
        fitting = (
            self.keys.shape == self.weights.shape
            and rows == len(self.rows)
            and self.maxima.shape == self.means.shape == sizes
        )
        if not fitting:
            expected = f"keys and weights ({heads}, {rows}, {kept}), {rows} rows, maps {sizes}"
            raise ArgumentError(message(f"Pooled({self.name!r})", "sizes do not fit", expected=expected))
        low, high = int(self.keys.min(initial=0)), int(self.keys.max(initial=-1))
        if low < -1 or high >= len(self.columns):
            expected = f"-1 to {len(self.columns) - 1}, one for each column"
            raise ArgumentError(
                message(f"Pooled({self.name!r})", f"keys go from {low} to {high}", expected=expected)
            )

    @property
    def heads(self) -> int:
        """How many heads look here, 1 where there are none."""
        return len(self.weights)


def pooled(name: str, weights: Any, rows: Sequence[str], columns: Sequence[str], top: int = 32) -> Pooled:
    """Keep of long attention the `top` largest weights of each row and a map of blocks.

    weights: an array (H, T, S) or (T, S), a memory map say, or strips of it, (H, n, S) or (n, S), from the
    first row to the last: what Look(rows=...) gives for a few rows at a time. Only one strip is held.

    >>> from regard.viewing import pooled
    >>> words = [f"w{place}" for place in range(1000)]
    >>> strips = (numpy.eye(1000)[first : first + 100] for first in range(0, 1000, 100))
    >>> long = pooled("self", strips, words, words, top=2)
    >>> long.keys[0, 7].tolist(), long.maxima.shape, long.means[0, 0, 0].item()
    ([7, -1], (1, 250, 250), 0.25)
    """
    call, sizes = f"pooled({name!r})", (len(rows), len(columns))
    kept_rows: list[tuple[NDArray[Any], NDArray[Any]]] = []
    maxima = sums = numpy.zeros(0)
    first = 0
    for strip in _strips(weights):
        given = strip if getattr(strip, "ndim", 3) == 3 else strip[None]
        checked, _ = checked_weights(call, given, "HTS", None)
        strip_HnS = checked.astype(numpy.float32)
        heads, count, length = strip_HnS.shape
        if not first:
            maxima = numpy.zeros((heads, *map(_blocks, sizes)))
            sums = numpy.zeros_like(maxima)
        if length != sizes[1] or heads != len(maxima) or first + count > sizes[0]:
            problem = f"rows {first} to {first + count} are weights of H={heads}, S={length}"
            expected = f"H={len(maxima)}, S={sizes[1]} columns, T={sizes[0]} rows in all"
            raise ArgumentError(message(call, problem, expected=expected))
        kept_rows.append(largest(strip_HnS, min(top, length)))
        _pool(strip_HnS, first, sizes, maxima, sums)
        first += count
    if first != sizes[0] or not first:
        raise ArgumentError(
            message(call, f"weights have {first} rows", expected=f"T = {sizes[0]}, 1 or more")
        )
    keys, kept = (numpy.concatenate(parts, 1) for parts in zip(*kept_rows, strict=True))
    return Pooled(
        name,
        keys.astype(numpy.int32),
        kept.astype(numpy.float32),
        maxima.astype(numpy.float32),
        (sums / _areas(*sizes)).astype(numpy.float32),
        tuple(map(str, rows)),
        tuple(map(str, columns)),
    )


def pooled_from_top(name: str, top: Any, rows: Sequence[str], columns: Sequence[str]) -> Pooled:
    """Keep of long attention what Look(top=k) saw of it: attended.top, its weights and keys, ([H,] T, k).

    The map is made from these alone. The largest of a block is right wherever it is among the k largest of
    its row; the means leave out the rest, and are less than they should be.

    >>> import regard, torch
    >>> from regard.viewing import pooled_from_top
    >>> x = 4 * torch.eye(300)
    >>> top = regard.attention(x, x, look=regard.Look(top=8)).top
    >>> words = [f"w{place}" for place in range(300)]
    >>> long = pooled_from_top("self", top, words, words)
    >>> long.keys.shape, long.maxima.shape, long.whole
    ((1, 300, 8), (1, 150, 150), False)
    """
    call = f"pooled_from_top({name!r})"
    given, found = (_numpy(each) for each in (top.weights, top.keys))
    weights, _ = checked_weights(call, given if given.ndim == 3 else given[None], "HTS", None)
    keys = found.reshape(weights.shape).astype(numpy.int32)
    sizes = (len(rows), len(columns))
    if weights.shape[1] != sizes[0] or keys.max(initial=-1) >= sizes[1]:
        problem = f"top is of T={weights.shape[1]} rows, and its last key is {keys.max(initial=-1)}"
        raise ArgumentError(message(call, problem, expected=f"T={sizes[0]} rows, S={sizes[1]} columns"))
    maxima = numpy.zeros((len(weights), *map(_blocks, sizes)))
    sums = numpy.zeros_like(maxima)
    there = keys >= 0
    head, row, _ = numpy.nonzero(there)
    place = (head, row // _side(sizes[0]), keys[there] // _side(sizes[1]))
    numpy.maximum.at(maxima, place, weights[there])
    numpy.add.at(sums, place, weights[there])
    return Pooled(
        name,
        keys,
        weights.astype(numpy.float32),
        maxima.astype(numpy.float32),
        (sums / _areas(*sizes)).astype(numpy.float32),
        tuple(map(str, rows)),
        tuple(map(str, columns)),
        whole=False,
    )


def _side(size: int) -> int:
    """How many rows or columns a block has."""
    return max(math.ceil(size / MAP), 1)


def _blocks(size: int) -> int:
    return math.ceil(size / _side(size))


def _areas(rows: int, columns: int) -> NDArray[numpy.float64]:
    """How many weights are in each block; those at the edges have fewer."""
    down, across = (
        numpy.diff(numpy.minimum(numpy.arange(_blocks(size) + 1) * _side(size), size))
        for size in (rows, columns)
    )
    return numpy.outer(down, across).astype(numpy.float64)


def _strips(weights: Any) -> Iterator[NDArray[Any]]:
    if not hasattr(weights, "shape"):
        yield from (_numpy(strip) for strip in weights)
        return
    *_, rows, columns = weights.shape
    heads = weights.shape[0] if len(weights.shape) == 3 else 1
    step = max(STRIP // max(heads * columns, 1), 1)
    for first in range(0, rows, step):
        yield _numpy(weights[..., first : first + step, :])


def largest(strip: NDArray[Any], top: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The keys and weights of the largest of each row, largest first; -1 and 0 where the weight is 0."""
    some = numpy.argpartition(strip, -top, axis=-1)[..., -top:] if top else strip[..., :0].astype(int)
    weights = numpy.take_along_axis(strip, some, -1)
    order = numpy.argsort(-weights, axis=-1, kind="stable")
    weights, keys = numpy.take_along_axis(weights, order, -1), numpy.take_along_axis(some, order, -1)
    return numpy.where(weights == 0, -1, keys), weights


def _pool(
    strip: NDArray[Any], first: int, sizes: tuple[int, int], maxima: NDArray[Any], sums: NDArray[Any]
) -> None:
    """Add a strip to the maps of blocks."""
    side, across = _side(sizes[0]), numpy.arange(0, sizes[1], _side(sizes[1]))
    blocks = numpy.arange(first, first + strip.shape[1]) // side
    down = numpy.flatnonzero(numpy.diff(blocks, prepend=-1))
    place = slice(blocks[0], blocks[-1] + 1)
    highest = numpy.maximum.reduceat(numpy.maximum.reduceat(strip, across, axis=2), down, axis=1)
    maxima[:, place] = numpy.maximum(maxima[:, place], highest)
    sums[:, place] += numpy.add.reduceat(numpy.add.reduceat(strip, across, axis=2), down, axis=1, dtype=float)


def _numpy(given: Any) -> NDArray[Any]:
    # A tensor is known by what it can do: torch is not needed to draw.
    return numpy.asarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
