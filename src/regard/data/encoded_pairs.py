"""EncodedPairs: pairs of sentences as token numbers in flat arrays, in memory or mapped from files."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message

__all__ = ["EncodedPairs", "Side"]


class Reader:
    """A file from which places are read without mapping them.

    A place that is read through a map brings what is around it into the process, up to 64 KiB: sentences
    in random order would soon bring all of a large file.
    """

    def __init__(self, path: Path):
        self.handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    def read(self, begins: NDArray[numpy.int64], ends: NDArray[numpy.int64]) -> bytes:
        """The bytes from each begin to its end, one after another."""
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        return b"".join([os.pread(self.handle, end - begin, begin) for begin, end in bounds])


class Side(NamedTuple):
    """The sentences of one side: all tokens in a row, where each sentence begins, and where the last ends.

    reader: of the file that begins with these tokens, if there is one and it is large.
    """

    tokens: NDArray[Any]
    offsets: NDArray[numpy.int64]
    reader: Reader | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Side:
        """The sentences given as lists of tokens."""
        offsets = numpy.cumsum([0, *map(len, rows)], dtype=numpy.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(numpy.fromiter(flat, numpy.uint32, int(offsets[-1])), offsets)

    def at(self, index: int) -> NDArray[Any]:
        """The tokens of one sentence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def gather(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[numpy.int64]]:
        """The tokens of some sentences, one after another, and how many each has."""
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - begins
        if self.reader is not None:
            size = self.tokens.itemsize
            return numpy.frombuffer(self.reader.read(begins * size, ends * size), self.tokens.dtype), lengths
        shifts = begins - (numpy.cumsum(lengths) - lengths)
        return self.tokens[numpy.arange(int(lengths.sum())) + numpy.repeat(shifts, lengths)], lengths

    def lengths(self) -> NDArray[numpy.int32]:
        """The tokens of each sentence, counted."""
        return numpy.diff(self.offsets).astype(numpy.int32)


class EncodedPairs:
    """Pairs of sentences as token numbers, without BOS and EOS, in flat arrays.

    sources, targets: a Side each. numbers: (N,), the place of each pair in the data it was made from, from 0
    on: pairs can have been skipped. skipped, truncated: how many were too long.

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
    ):
        self.sources, self.targets, self.numbers = sources, targets, numbers
        self.skipped, self.truncated = skipped, truncated

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

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no pair {index}: there are {len(self)}")
        return index % len(self)

    def __repr__(self) -> str:
        return f"EncodedPairs({len(self)} pairs, {self.skipped} skipped, {self.truncated} truncated)"
