"""EncodedPairs: pairs of sentences as token numbers in flat arrays, in memory or mapped from files."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message

__all__ = ["EncodedPairs", "Side"]


class Side(NamedTuple):
    """The sentences of one side: all tokens in a row, where each sentence begins, and where the last ends."""

    tokens: NDArray[Any]
    offsets: NDArray[numpy.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Side:
        """The sentences given as lists of tokens."""
        offsets = numpy.cumsum([0, *map(len, rows)], dtype=numpy.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(numpy.fromiter(flat, numpy.uint32, int(offsets[-1])), offsets)

    def at(self, index: int) -> NDArray[Any]:
        """The tokens of one sentence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> NDArray[numpy.int32]:
        """The tokens of each sentence, counted."""
        return numpy.diff(self.offsets).astype(numpy.int32)


class EncodedPairs:
    """Pairs of sentences as token numbers, without BOS and EOS, in flat arrays.

    sources, targets: a Side each. numbers: (N,), the place of each pair in the data it was made from, from 0
    on: pairs can have been skipped. skipped, truncated: how many were too long. maps: the files behind it.

    >>> data = EncodedPairs.in_memory([[7, 8], [9]], [[5], [6, 4, 4]])
    >>> len(data), data.source(0), data.target_lengths
    (2, array([7, 8], dtype=uint32), array([1, 3], dtype=int32))
    """

    def __init__(
        self,
        sources: Side,
        targets: Side,
        numbers: NDArray[numpy.int64],
        skipped: int = 0,
        truncated: int = 0,
        maps: Sequence[mmap.mmap] = (),
    ):
        self.sources, self.targets, self.numbers = sources, targets, numbers
        self.skipped, self.truncated = skipped, truncated
        self._maps = maps

    @classmethod
    def in_memory(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> EncodedPairs:
        """Pairs given as lists of tokens, with no file behind them."""
        if len(sources) != len(targets):
            problem = f"there are {len(sources)} sources and {len(targets)} targets"
            raise ArgumentError(message("EncodedPairs.in_memory()", problem, expected="as many of each"))
        return cls(Side.of(sources), Side.of(targets), numpy.arange(len(sources)))

    def __len__(self) -> int:
        return len(self.numbers)

    def source(self, index: int) -> NDArray[Any]:
        """The tokens of a source: a view, which cannot be written to where a file is behind it."""
        return self.sources.at(self._checked(index))

    def target(self, index: int) -> NDArray[Any]:
        """The tokens of a target, likewise."""
        return self.targets.at(self._checked(index))

    @cached_property
    def source_lengths(self) -> NDArray[numpy.int32]:
        """The tokens of each source, counted: (N,)."""
        return self.sources.lengths()

    @cached_property
    def target_lengths(self) -> NDArray[numpy.int32]:
        """The tokens of each target, counted: (N,)."""
        return self.targets.lengths()

    def release(self) -> None:
        """Give back the memory of what has been read from the files; it is read again when it is needed.

        The system does so by itself when memory is short; until then, what was read counts as this process's.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            for each in self._maps:
                each.madvise(mmap.MADV_DONTNEED)

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no pair {index}: there are {len(self)}")
        return index % len(self)

    def __repr__(self) -> str:
        return f"EncodedPairs({len(self)} pairs, {self.skipped} skipped, {self.truncated} truncated)"
