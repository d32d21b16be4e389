"""The formats from which sentence pairs are read. Each format yields chunks of consecutive pairs.

The lines of a chunk are already checked for problems, such as invalid UTF-8.

To add a format, add its class here and a keyword of read_pairs() in pairs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy

from regard.data.line_features import MOST_FEATURES, Features, features_of
from regard.data.line_scan import Block, Examiner
from regard.data.pair_checks import KINDS, SHORT, Choices
from regard.data.read_text import Marks, Raw, checked_path, read_blocks
from regard.data.row_formats import column_rows, field_rows, list_rows
from regard.errors import shown

__all__ = ["Chunk", "CountsDiffer", "JsonLines", "Origin", "Parallel", "Rows", "Tabbed"]

Examiners = tuple[Examiner, Examiner]
Stamp = tuple[tuple[int, int], ...]

NO_TEXT = KINDS["malformed"].bit | KINDS["empty"].bit


class Chunk(NamedTuple):
    """Consecutive sentence pairs: a range of lines of a source block, and a range of lines of a target block.

    source, target: the blocks. A block is a part of a file: lines that were read and checked together.
    source_from, target_from: index in each block of the first line that belongs to this chunk.
    pairs: number of pairs in this chunk.
    position: number of pairs before this chunk.
    reached: how many bytes or rows have been read so far, of Origin.size() in total.
    """

    source: Block
    source_from: int
    target: Block
    target_from: int
    pairs: int
    position: int = 0
    reached: int = 0

    @property
    def sides(self) -> tuple[tuple[Block, slice], tuple[Block, slice]]:
        """Two pairs (block, slice), for source and target. The slice selects the lines in this chunk."""
        return (
            (self.source, slice(self.source_from, self.source_from + self.pairs)),
            (self.target, slice(self.target_from, self.target_from + self.pairs)),
        )

    def marks(self, choices: Choices) -> Marks:
        """Return one integer for each pair, with a bit set for each problem of the pair; see Kind.bit."""
        (source, of_source), (target, of_target) = self.sides
        marks = source.marks[of_source] | target.marks[of_target]
        if choices.ratio is not None:
            one = numpy.maximum(source.lengths[of_source], SHORT)
            other = numpy.maximum(target.lengths[of_target], SHORT)
            uneven = numpy.maximum(one, other) > choices.ratio * numpy.minimum(one, other)
            if uneven.any():
                marks[uneven & ((marks & NO_TEXT) == 0)] |= KINDS["uneven"].bit
        return marks


class CountsDiffer(Exception):
    """Raised when two parallel files have different numbers of lines.

    paths: the source path and the target path.
    counts: the line count of the source file, and the line count of the target file.
    rest: the features (length, last byte, digits) of the extra lines of the longer file. It has the features
        of about the first MOST_FEATURES extra lines only.
    encoding: the encoding of the files; None is UTF-8.
    """

    def __init__(
        self, paths: tuple[Path, Path], counts: tuple[int, int], rest: Features, encoding: str | None = None
    ):
        super().__init__(f"{shown(paths[0])} has {counts[0]} lines, {shown(paths[1])} has {counts[1]}")
        self.paths, self.counts, self.rest, self.encoding = paths, counts, rest, encoding


class Origin(Protocol):
    """Where sentence pairs are read from: files or a collection. It can be read any number of times."""

    def size(self) -> int:
        """Return the size of the data in bytes or rows, the unit of Chunk.reached; 0 if it is unknown."""

    def stamp(self) -> Stamp:
        """Return the size and the modification time of each file, to detect changes; () for a collection."""

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        """Yield all sentence pairs in chunks of consecutive pairs.

        examiners: two objects: the first checks the source lines, the second checks the target lines.
        """


@dataclass(frozen=True)
class Parallel:
    """Sentence pairs from parallel files: line n of a target file translates line n of its source file.

    sources, targets: the source files, and the target file of each source file.
    encoding: the encoding of the files; None is UTF-8.
    """

    sources: tuple[Path, ...]
    targets: tuple[Path, ...]
    encoding: str | None = None

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.sources)

    def stamp(self) -> Stamp:
        return _stamp((*self.sources, *self.targets))

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        position = reached = 0
        for source, target in zip(self.sources, self.targets, strict=True):
            for examiner in examiners:
                examiner.number = 1
            blocks = read_blocks(source, self.encoding), read_blocks(target, self.encoding)
            sides = map(examiners[0], blocks[0]), map(examiners[1], blocks[1])
            for chunk in _aligned(*sides, (source, target), self.encoding):
                yield chunk._replace(position=position, reached=reached + chunk.source.raw.reached)
                position += chunk.pairs
            reached += source.stat().st_size


@dataclass(frozen=True)
class Tabbed:
    """Sentence pairs from TSV or CSV files. Columns other than source and target are ignored.

    columns: the source column and the target column, as numbers from 1 or as names in the header line.
    encoding: the encoding of the files; None is UTF-8.
    """

    paths: tuple[Path, ...]
    columns: tuple[int, int] | tuple[str, str]
    encoding: str | None = None

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def stamp(self) -> Stamp:
        return _stamp(self.paths)

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        files = ((path, column_rows(path, self.columns, self.encoding)) for path in self.paths)
        return _joined(files, examiners)


@dataclass(frozen=True)
class JsonLines:
    """Sentence pairs from files with one JSON object per line, JSON arrays of objects, or Parquet files.

    fields: the source field and the target field; "translation.de" is the field "de" in "translation".
    encoding: the encoding of the files; None is UTF-8.
    """

    paths: tuple[Path, ...]
    fields: tuple[str, str]
    encoding: str | None = None

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def stamp(self) -> Stamp:
        return _stamp(self.paths)

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        files = ((path, field_rows(path, self.fields, self.encoding)) for path in self.paths)
        return _joined(files, examiners)


@dataclass(frozen=True)
class Rows:
    """Sentence pairs from a Python collection that can be iterated over repeatedly, such as a list.

    fields: the names of the source field and the target field; None if the rows are (source, target) tuples.
    """

    rows: Iterable[Any]
    fields: tuple[str, str] | None = None

    def size(self) -> int:
        return len(self.rows) if isinstance(self.rows, Sized) else 0

    def stamp(self) -> Stamp:
        return ()

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        return _joined(((None, list_rows(self.rows, self.fields)),), examiners)


def _stamp(paths: Iterable[Path]) -> Stamp:
    return tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, map(checked_path, paths)))


def _joined(
    files: Iterable[tuple[Path | None, Iterator[tuple[Raw, Raw]]]], examiners: Examiners
) -> Iterator[Chunk]:
    """Yield chunks of sentence pairs from files in which source and target are on one line.

    files: for each file, its path (None for a collection), and its blocks of source and target lines.
    examiners: two objects: the first checks the source lines, the second checks the target lines.
    """
    position = reached = 0
    for path, blocks in files:
        for examiner in examiners:
            examiner.number = 1
        for source, target in blocks:
            sides = examiners[0](source), examiners[1](target)
            yield Chunk(sides[0], 0, sides[1], 0, len(sides[0]), position, reached + source.reached)
            position += len(sides[0])
        reached += path.stat().st_size if path else 0


def _aligned(
    source: Iterator[Block], target: Iterator[Block], paths: tuple[Path, Path], encoding: str | None
) -> Iterator[Chunk]:
    """Yield chunks of sentence pairs from two parallel files.

    source, target: the blocks of lines of each file. Blocks of the two files may end at different lines, so a
        block can be divided between several chunks.
    paths: the source path and the target path.
    encoding: the encoding of the files, for CountsDiffer.

    Raises CountsDiffer if one file ends before the other.
    """
    left, right = next(source, None), next(target, None)
    i = j = shared = 0
    while left is not None and right is not None:
        count = min(len(left) - i, len(right) - j)
        yield Chunk(left, i, right, j, count)
        i, j, shared = i + count, j + count, shared + count
        if i == len(left):
            left, i = next(source, None), 0
        if j == len(right):
            right, j = next(target, None), 0
    if left is not None:
        rest, more = _rest(features_of(left).part(i), source)
        raise CountsDiffer(paths, (shared + more, shared), rest, encoding)
    if right is not None:
        rest, more = _rest(features_of(right).part(j), target)
        raise CountsDiffer(paths, (shared, shared + more), rest, encoding)


def _rest(first: Features, blocks: Iterator[Block]) -> tuple[Features, int]:
    """Return the features (length, last byte, digits) of the remaining lines of a file, and their number.

    first: the features of the first remaining lines.
    blocks: the blocks that contain the other remaining lines.

    After about MOST_FEATURES lines, no features are computed; the lines are only counted.
    """
    parts, count = [first], len(first)
    for block in blocks:
        if count < MOST_FEATURES:
            parts.append(features_of(block))
        count += len(block)
    return Features.joined(parts), count
