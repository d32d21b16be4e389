"""Pooled: a summary of the attention of a long sequence. The whole T x S matrix is never in memory.

A Pooled contains the largest weights of each row with their keys, and a block map. For the block map, the
matrix is divided into blocks, and the maximum and the mean of each block are stored. For 8,192 tokens, the
matrix has 67 million weights. The block map and the 32 largest weights of each row are only 0.7 million
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import as_numpy, checked_weights

MAP = 256
"""Maximum number of blocks into which the rows, and the columns, of a matrix are divided."""

STRIP = 2**22
"""Approximate number of weights that are processed at a time. A larger array is divided into groups of
rows."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """A summary of one attention layer (site) for a long sequence. pooled() and pooled_from_top() create it.

    name: the name of the site.
    weights: (H, T, k), the k largest weights of each row, largest first. Rows with fewer weights are padded
        with 0.
    keys: (H, T, k), the positions of the keys of these weights. -1 for padding.
    maxima, means: (H, t, s), the maximum and the mean of each block. Each matrix (T, S) is divided into t x s
        blocks. t and s are at most 256.
    rows, columns: the T queries and S keys as text.
    whole: True if maxima and means were computed from all weights. False if the maxima were computed only
        from the k largest weights of each row.
    exact_means: if `whole` is False, whether the means were computed from all weights nevertheless. If not,
        they are too small.
    """

    name: str
    keys: NDArray[Any]  # int32
    weights: NDArray[Any]  # float32, as maxima and means
    maxima: NDArray[Any]
    means: NDArray[Any]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    whole: bool = True
    exact_means: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            object.__setattr__(self, name, tuple(map(str, getattr(self, name))))
        object.__setattr__(self, "keys", self.keys.astype(numpy.int32, copy=False))
        for name in ("weights", "maxima", "means"):
            object.__setattr__(self, name, getattr(self, name).astype(numpy.float32, copy=False))
        heads, rows, kept = self.weights.shape
        sizes = (heads, _blocks(rows), _blocks(len(self.columns)))
        fitting = (
            self.keys.shape == self.weights.shape
            and rows == len(self.rows)
            and self.maxima.shape == self.means.shape == sizes
        )
        if not fitting:
            expected = f"keys and weights of shape ({heads}, {rows}, {kept}), {rows} entries in rows, and "
            expected += f"maxima and means of shape {sizes}"
            raise ArgumentError(
                message(f"Pooled({self.name!r})", "the shapes of the arrays do not match", expected=expected)
            )
        low, high = int(self.keys.min(initial=0)), int(self.keys.max(initial=-1))
        if low < -1 or high >= len(self.columns):
            expected = f"-1 (no key) to {len(self.columns) - 1}, the last column"
            raise ArgumentError(
                message(f"Pooled({self.name!r})", f"keys range from {low} to {high}", expected=expected)
            )

    @property
    def heads(self) -> int:
        """Number of heads. 1 for attention without heads."""
        return len(self.weights)


def pooled(name: str, weights: Any, rows: Sequence[str], columns: Sequence[str], top: int = 32) -> Pooled:
    """Return a Pooled: the `top` largest weights of each row, and the maximum and mean of each block.

    A block is a rectangle of neighbouring queries and keys. There are at most 256 x 256 blocks.

    name: the name of the site.
    weights: an array (H, T, S) or (T, S), for example a numpy.memmap. Or an iterable of groups of n rows, (H,
        n, S) or (n, S), in row order, as Look(rows=...) records them. Only one group is in memory at a time.
    rows, columns: the T queries and S keys as text.
    top: the number of weights of each row to keep.

    In this example, each block has 4 x 4 weights. Blocks on the diagonal have four weights of 1, so their
    mean is 0.25:

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
        with_heads = strip if getattr(strip, "ndim", 3) == 3 else strip[None]
        checked, _ = checked_weights(call, with_heads, "HTS", None)
        strip_HnS = checked.astype(numpy.float32)
        heads, count, length = strip_HnS.shape
        if not first:
            maxima = numpy.zeros((heads, *map(_blocks, sizes)))
            sums = numpy.zeros_like(maxima)
        if length != sizes[1] or heads != len(maxima) or first + count > sizes[0]:
            problem = f"the strip of rows {first} to {first + count} has H={heads}, S={length}"
            expected = f"H={len(maxima)}, S={sizes[1]}, and T={sizes[0]} rows in total"
            raise ArgumentError(message(call, problem, expected=expected))
        kept_rows.append(largest(strip_HnS, min(top, length)))
        _pool(strip_HnS, first, sizes, maxima, sums)
        first += count
    if not first:
        raise ArgumentError(message(call, "weights have no rows", expected="at least one row"))
    if first != sizes[0]:
        expected = f"{sizes[0]} rows, one for each query"
        raise ArgumentError(message(call, f"weights have {first} rows", expected=expected))
    keys, kept = (numpy.concatenate(parts, 1) for parts in zip(*kept_rows, strict=True))
    return Pooled(name, keys, kept, maxima, sums / _areas(*sizes), tuple(rows), tuple(columns))


def pooled_from_top(
    name: str, top: Any, rows: Sequence[str], columns: Sequence[str], means: Any = None
) -> Pooled:
    """Return a Pooled from the k largest weights of each row, as recorded by Look(top=k).

    name: the name of the site.
    top: attended.top, with weights and keys of shape ([H,] T, k).
    rows, columns: the T queries and S keys as text.
    means: attended.pooled, the mean of each block, of shape ([H,] t, s), as recorded by Look(pooled=n) with
        n = block_side(T) = block_side(S).

    A block is a rectangle of neighbouring queries and keys. The maximum of each block is computed only from
    the recorded weights. It is exact if it is among the k largest weights of its row. Without `means`, the
    means are computed from the recorded weights too, and are too small.

    In this example, each block has 2 x 2 weights:

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
    top_weights, top_keys = (as_numpy(each) for each in (top.weights, top.keys))
    with_heads = top_weights if top_weights.ndim == 3 else top_weights[None]
    weights, _ = checked_weights(call, with_heads, "HTS", None)
    keys = top_keys.reshape(weights.shape).astype(numpy.int32)
    sizes = (len(rows), len(columns))
    if weights.shape[1] != sizes[0] or keys.max(initial=-1) >= sizes[1]:
        problem = f"top has T={weights.shape[1]} rows, and its largest key is {keys.max(initial=-1)}"
        raise ArgumentError(message(call, problem, expected=f"T={sizes[0]} rows, S={sizes[1]} columns"))
    maxima = numpy.zeros((len(weights), *map(_blocks, sizes)))
    sums = numpy.zeros_like(maxima)
    valid = keys >= 0
    head, row, _ = numpy.nonzero(valid)
    place = (head, row // block_side(sizes[0]), keys[valid] // block_side(sizes[1]))
    numpy.maximum.at(maxima, place, weights[valid])
    if means is None:
        numpy.add.at(sums, place, weights[valid])
        exact = sums / _areas(*sizes)
    else:
        exact = as_numpy(means)
        if exact.size != sums.size:
            problem = f"means has the shape {exact.shape}"
            raise ArgumentError(message(call, problem, expected=f"the mean of each block, {sums.shape}"))
    sides, exact = (tuple(rows), tuple(columns)), exact.reshape(maxima.shape)
    return Pooled(name, keys, weights, maxima, exact, *sides, whole=False, exact_means=means is not None)


def block_side(size: int) -> int:
    """Return the height of a block for a matrix with `size` rows, or its width for `size` columns."""
    return max(math.ceil(size / MAP), 1)


def _blocks(size: int) -> int:
    return math.ceil(size / block_side(size))


def _areas(rows: int, columns: int) -> NDArray[numpy.float64]:
    """Return how many weights each block of a matrix of `rows` x `columns` weights has, as an array (t, s).

    The last blocks of a row or column may be smaller than the others.
    """
    down, across = (
        numpy.diff(numpy.minimum(numpy.arange(_blocks(size) + 1) * block_side(size), size))
        for size in (rows, columns)
    )
    return numpy.outer(down, across).astype(numpy.float64)


def _strips(weights: Any) -> Iterator[NDArray[Any]]:
    if not hasattr(weights, "shape"):
        yield from (as_numpy(strip) for strip in weights)
        return
    *_, rows, columns = weights.shape
    heads = weights.shape[0] if len(weights.shape) == 3 else 1
    step = max(STRIP // max(heads * columns, 1), 1)
    for first in range(0, rows, step):
        yield as_numpy(weights[..., first : first + step, :])


def largest(strip: NDArray[Any], top: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the `top` largest weights of each row: an array of key indices, and an array of weights.

    In each row, the largest weight is first. If a weight is 0, its key index is -1.

    strip: (..., n, S), n rows of weights for S keys.
    """
    some = _places_of_largest(strip, top) if top else strip[..., :0].astype(int)
    weights = numpy.take_along_axis(strip, some, -1)
    order = numpy.argsort(-weights, axis=-1, kind="stable")
    weights, keys = numpy.take_along_axis(weights, order, -1), numpy.take_along_axis(some, order, -1)
    return numpy.where(weights == 0, -1, keys), weights


def _places_of_largest(strip: NDArray[Any], top: int) -> NDArray[Any]:
    """Return the indices of the `top` largest weights of each row, in any order.

    The largest weights of a row are in the `top` spans of neighbouring weights with the largest maxima, or in
    the rest of the row. Only these are partitioned: numpy takes long to partition rows of many equal weights.
    """
    *leading, length = strip.shape
    span = max(math.isqrt(length // top), 1)
    covered = length // span * span
    maxima = strip[..., :covered].reshape(*leading, -1, span).max(-1)
    spans = numpy.argpartition(maxima, -top, axis=-1)[..., -top:]
    inside = (spans[..., None] * span + numpy.arange(span)).reshape(*leading, top * span)
    rest = numpy.broadcast_to(numpy.arange(covered, length), (*leading, length - covered))
    candidates = numpy.concatenate((inside, rest), -1)
    weights = numpy.take_along_axis(strip, candidates, -1)
    return numpy.take_along_axis(candidates, numpy.argpartition(weights, -top, axis=-1)[..., -top:], -1)


def _pool(
    strip: NDArray[Any], first: int, sizes: tuple[int, int], maxima: NDArray[Any], sums: NDArray[Any]
) -> None:
    """Update the maximum and the sum of each block, in place, with some rows of the weights.

    strip: (H, n, S), n rows of the weights.
    first: the index of the first of these rows.
    sizes: (T, S).
    maxima, sums: (H, t, s), the numbers to update, for t x s blocks.
    """
    side, across = block_side(sizes[0]), numpy.arange(0, sizes[1], block_side(sizes[1]))
    blocks = numpy.arange(first, first + strip.shape[1]) // side
    down = numpy.flatnonzero(numpy.diff(blocks, prepend=-1))
    place = slice(blocks[0], blocks[-1] + 1)
    highest = numpy.maximum.reduceat(numpy.maximum.reduceat(strip, across, axis=2), down, axis=1)
    maxima[:, place] = numpy.maximum(maxima[:, place], highest)
    sums[:, place] += numpy.add.reduceat(numpy.add.reduceat(strip, across, axis=2), down, axis=1, dtype=float)
