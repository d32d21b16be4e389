"""DuplicateCounter: count duplicate sentence pairs in bounded memory, by hashes of their text."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

__all__ = ["DuplicateCounter", "joined_keys"]

MOST_KEYS = 16_000_000
"""Maximum number of pairs whose hashes are held in memory to count duplicates, with 16 bytes for each pair.

If there are more pairs, repeated hashes are removed. If more than MOST_KEYS / 2 hashes are left, only a
sample of the hashes is stored, and the number of duplicates is estimated."""


class DuplicateCounter:
    """Counts duplicate sentence pairs. Pairs are compared by their keys, which are 64-bit hashes.

    examples: maximum number of duplicates whose positions are stored.

    If there are more than MOST_KEYS / 2 distinct keys, only about one in `every` distinct keys is stored. The
    lowest bits of a key decide whether it is stored. The number of distinct pairs is then estimated as
    `every` times the number of stored keys. The number of all pairs (`total`) is always exact.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.every, self.total, self.pending = 1, 0, 0
        self.first: list[int] = []
        self.parts: list[tuple[NDArray[numpy.int64], NDArray[numpy.int64]]] = []

    def add(
        self, keys: NDArray[numpy.int64], positions: NDArray[numpy.int64], kept: NDArray[numpy.bool_]
    ) -> None:
        self.total += int(kept.sum())
        kept = kept & self._sampled(keys)
        self.parts.append((keys[kept], positions[kept]))
        self.pending += len(self.parts[-1][0])
        if self.pending > MOST_KEYS:
            self._distinct()

    def duplicates(self) -> tuple[int, list[int]]:
        """Return the number of pairs that repeat an earlier pair, and the positions of the first such pairs.

        The number is an estimate if `every` is more than 1. There are at most `examples` positions.
        """
        return max(self.total - self.every * self._distinct(), 0), self.first

    def _distinct(self) -> int:
        """Remove repeated keys and return the number of distinct keys that are stored.

        As long as there are too many keys (see MOST_KEYS), about half of them are removed, and `every` is
        doubled.
        """
        empty = numpy.zeros(0, numpy.int64)
        keys, positions = map(numpy.concatenate, zip((empty, empty), *self.parts, strict=True))
        order = numpy.argsort(keys, kind="stable")
        keys, positions = keys[order], positions[order]
        new = numpy.ones(len(keys), bool)
        new[1:] = keys[1:] != keys[:-1]
        self.first = sorted([*self.first, *numpy.sort(positions[~new])[: self.examples].tolist()])[
            : self.examples
        ]
        keys, positions = keys[new], positions[new]
        while len(keys) > MOST_KEYS // 2:
            self.every *= 2
            new = self._sampled(keys)
            keys, positions = keys[new], positions[new]
        self.parts, self.pending = [(keys, positions)], 0
        return len(keys)

    def _sampled(self, keys: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        return (keys & (self.every - 1)) == 0


def joined_keys(source: NDArray[numpy.int64], target: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Combine the keys of source and target lines into one key for each pair.

    The pairs (a, b) and (b, a) get different keys.
    """
    return source * numpy.int64(0x1E3779B97F4A7C15) + (target ^ (target >> 29)) * numpy.int64(
        0x3F58476D1CE4E5B9
    )
