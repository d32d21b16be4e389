"""EncodedPairs: sentence pairs as token ids in flat arrays, in memory or memory-mapped."""

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
    """Reads parts of a file without memory-mapping it.

    Reading a sentence through a memory map also loads up to 64 KiB around it. Reading sentences in random
    order would soon load a large file into memory completely.
    """

    def __init__(self, path: Path):
        self.handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    def read(self, begins: NDArray[numpy.int64], ends: NDArray[numpy.int64]) -> bytes:
        """Return the bytes from begins[i] to ends[i] - 1 of the file, for all i, concatenated."""
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        return b"".join([os.pread(self.handle, end - begin, begin) for begin, end in bounds])


class Side(NamedTuple):
    """The sentences of one side of a dataset (source or target), as a flat array of token ids.

    tokens: the token ids of all sentences, concatenated.
    offsets: (N + 1,), index in `tokens` at which each sentence starts, then the end of the last sentence.
    reader: the object that reads the tokens if they are in a large file, which is not memory-mapped;
        otherwise None.
    """

    tokens: NDArray[Any]
    offsets: NDArray[numpy.int64]
    reader: Reader | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Side:
        """Create a Side from lists of token ids, one list for each sentence."""
        offsets = numpy.cumsum([0, *map(len, rows)], dtype=numpy.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(numpy.fromiter(flat, numpy.uint32, int(offsets[-1])), offsets)

    def at(self, index: int) -> NDArray[Any]:
        """Return the token ids of the sentence at this index."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def gather(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[numpy.int64]]:
        """Return the token ids of several sentences, concatenated, and the number of tokens of each sentence.

        rows: the indices of the sentences.
        """
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - begins
        if self.reader is not None:
            size = self.tokens.itemsize
            return numpy.frombuffer(self.reader.read(begins * size, ends * size), self.tokens.dtype), lengths
        shifts = begins - (numpy.cumsum(lengths) - lengths)
        return self.tokens[numpy.arange(int(lengths.sum())) + numpy.repeat(shifts, lengths)], lengths

    def lengths(self) -> NDArray[numpy.int32]:
        """Return the number of tokens of each sentence, (N,)."""
        return numpy.diff(self.offsets).astype(numpy.int32)


class EncodedPairs:
    """Sentence pairs as token ids, without BOS and EOS, in flat arrays.

    sources, targets: the tokens of the source sentences and of the target sentences, each as a Side (a flat
        array).
    numbers: (N,), position of each pair in the original data, from 0. Skipped pairs are not included.
    skipped: number of pairs that were dropped because they were too long.
    truncated: number of pairs that were cut because they were too long.

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
        """Create encoded pairs from lists of token ids, one list for each sentence, without a file."""
        if len(sources) != len(targets):
            problem = f"there are {len(sources)} sources and {len(targets)} targets"
            expected = "one target for each source"
            raise ArgumentError(message("EncodedPairs.in_memory()", problem, expected=expected))
        return cls(Side.of(sources), Side.of(targets), numpy.arange(len(sources)))

    def __len__(self) -> int:
        return len(self.numbers)

    def source(self, index: int) -> NDArray[Any]:
        """Return the token ids of the source sentence at this index, as a view of the array of all tokens.

        The view is read-only if the pairs are memory-mapped.
        """
        return self.sources.at(self._checked(index))

    def target(self, index: int) -> NDArray[Any]:
        """Return the token ids of the target sentence at this index, as a view of the array of all tokens.

        The view is read-only if the pairs are memory-mapped.
        """
        return self.targets.at(self._checked(index))

    @cached_property
    def source_lengths(self) -> NDArray[numpy.int32]:
        """Number of tokens of each source, (N,)."""
        return self.sources.lengths()

    @cached_property
    def target_lengths(self) -> NDArray[numpy.int32]:
        """Number of tokens of each target, (N,)."""
        return self.targets.lengths()

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"pair {index} is out of range for {len(self)} pairs")
        return index % len(self)

    def __repr__(self) -> str:
        return f"EncodedPairs({len(self)} pairs, {self.skipped} skipped, {self.truncated} truncated)"
