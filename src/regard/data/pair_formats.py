"""Origins: where pairs come from. Each gives chunks: as many lines of one side as of the other, examined.

To add a form: its class here, and its way in by pairs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy

from regard.data.line_features import MOST_FEATURES, Features, features_of
from regard.data.line_scan import Block, Examiner
from regard.data.pair_checks import KINDS, SHORT, Choices
from regard.data.read_text import Marks, Raw, checked_path, read_blocks
from regard.data.row_formats import json_rows, list_rows, tabbed_rows
from regard.errors import shown

__all__ = ["Chunk", "CountsDiffer", "JsonLines", "Origin", "Parallel", "Rows", "Tabbed"]

Examiners = tuple[Examiner, Examiner]
Stamp = tuple[tuple[int, int], ...]

NO_TEXT = KINDS["malformed"].bit | KINDS["empty"].bit


class Chunk(NamedTuple):
    """Lines in pairs: `pairs` of them, from `source_from` on in one block and `target_from` on in the other.

    position: how many pairs come before. reached: how much of the origin has been read, of its size.
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
        """Each block with the lines of it that are meant."""
        return (
            (self.source, slice(self.source_from, self.source_from + self.pairs)),
            (self.target, slice(self.target_from, self.target_from + self.pairs)),
        )

    def marks(self, choices: Choices) -> Marks:
        """What is odd about each pair, as bits of KINDS."""
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
    """Two files that should be parallel are not: one has lines left when the other has ended.

    paths, counts: of both. rest: the features of the lines left, not of all where they are very many.
    """

    def __init__(self, paths: tuple[Path, Path], counts: tuple[int, int], rest: Features):
        super().__init__(f"{shown(paths[0])} has {counts[0]} lines, {shown(paths[1])} has {counts[1]}")
        self.paths, self.counts, self.rest = paths, counts, rest


class Origin(Protocol):
    """Where pairs come from; can be read again and again."""

    def size(self) -> int:
        """How much there is to read, in the measure of Chunk.reached; 0 where nobody knows."""

    def stamp(self) -> Stamp:
        """Changes when the data does."""

    def chunks(self, examiners: Examiners, *, threads: bool) -> Iterator[Chunk]:
        """All pairs; with threads, the sides are examined at the same time where that helps."""


@dataclass(frozen=True)
class Parallel:
    """Files in twos: line n of one is the translation of line n of the other."""

    sources: tuple[Path, ...]
    targets: tuple[Path, ...]

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.sources)

    def stamp(self) -> Stamp:
        return _stamp((*self.sources, *self.targets))

    def chunks(self, examiners: Examiners, *, threads: bool) -> Iterator[Chunk]:
        position = reached = 0
        for source, target in zip(self.sources, self.targets, strict=True):
            for examiner in examiners:
                examiner.number = 1
            sides = (map(examiners[0], read_blocks(source)), map(examiners[1], read_blocks(target)))
            ahead = (_ahead(sides[0]), _ahead(sides[1])) if threads else sides
            for chunk in _aligned(*ahead, (source, target)):
                yield chunk._replace(position=position, reached=reached + chunk.source.raw.reached)
                position += chunk.pairs
            reached += source.stat().st_size


@dataclass(frozen=True)
class Tabbed:
    """Files of lines with columns between tabs; more columns than are asked for are let be.

    columns: their numbers from 1 on; or their names, and then the first line of each file holds the names.
    """

    paths: tuple[Path, ...]
    columns: tuple[int, int] | tuple[str, str]

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def stamp(self) -> Stamp:
        return _stamp(self.paths)

    def chunks(self, examiners: Examiners, *, threads: bool) -> Iterator[Chunk]:
        named = isinstance(self.columns[0], str)
        files = ((path, tabbed_rows(path, self.columns)) for path in self.paths)
        return _joined(files, examiners, first=2 if named else 1)


@dataclass(frozen=True)
class JsonLines:
    """Files with one JSON object a line; "translation.de" is the field "de" of the field "translation"."""

    paths: tuple[Path, ...]
    fields: tuple[str, str]

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def stamp(self) -> Stamp:
        return _stamp(self.paths)

    def chunks(self, examiners: Examiners, *, threads: bool) -> Iterator[Chunk]:
        return _joined(((path, json_rows(path, self.fields)) for path in self.paths), examiners)


@dataclass(frozen=True)
class Rows:
    """Anything to go through again and again that gives rows with fields; or, without fields, two texts."""

    rows: Iterable[Any]
    fields: tuple[str, str] | None = None

    def size(self) -> int:
        return len(self.rows) if isinstance(self.rows, Sized) else 0

    def stamp(self) -> Stamp:
        return ()

    def chunks(self, examiners: Examiners, *, threads: bool) -> Iterator[Chunk]:
        return _joined(((None, list_rows(self.rows, self.fields)),), examiners)


def _stamp(paths: Iterable[Path]) -> Stamp:
    return tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, map(checked_path, paths)))


def _joined(
    files: Iterable[tuple[Path | None, Iterator[tuple[Raw, Raw]]]], examiners: Examiners, first: int = 1
) -> Iterator[Chunk]:
    """Chunks of what has both sides on a line."""
    position = reached = 0
    for path, blocks in files:
        for examiner in examiners:
            examiner.number = first
        for source, target in blocks:
            sides = examiners[0](source), examiners[1](target)
            yield Chunk(sides[0], 0, sides[1], 0, len(sides[0]), position, reached + source.reached)
            position += len(sides[0])
        reached += path.stat().st_size if path else 0


def _aligned(source: Iterator[Block], target: Iterator[Block], paths: tuple[Path, Path]) -> Iterator[Chunk]:
    """Chunks of two sides whose blocks end at different lines."""
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
        raise CountsDiffer(paths, (shared + more, shared), rest)
    if right is not None:
        rest, more = _rest(features_of(right).part(j), target)
        raise CountsDiffer(paths, (shared, shared + more), rest)


def _rest(first: Features, blocks: Iterator[Block]) -> tuple[Features, int]:
    """The features of the lines that are left, of MOST_FEATURES or a few more at most; and how many lines."""
    parts, count = [first], len(first)
    for block in blocks:
        if count < MOST_FEATURES:
            parts.append(features_of(block))
        count += len(block)
    return Features.joined(parts), count


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same blocks, each made by another thread while the one before is in use."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = worker.submit(next, blocks, None)
            yield block
