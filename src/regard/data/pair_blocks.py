"""Blocks of sentence pairs: read from files or collections, and checked for problems line by line.

To add a format, write the reader of its rows in table_formats.py, a constructor of Origin here, and a keyword
of read_pairs().
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.line_io import Place, place_blocks, place_name
from regard.data.read_text import KINDS, SHORT, Choices, Marks, Raw, checked_path, read_blocks, to_bytes
from regard.data.table_formats import Columns, Two, column_pairs, field_pairs, list_pairs
from regard.data.text_encoding import other_encoding
from regard.errors import printable, shown

LONGEST_EXCERPT = 60

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Zero-width characters. A line of only these characters counts as empty, although isspace() is False."""

NO_TEXT = KINDS["malformed"].bit | KINDS["empty"].bit

Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Consecutive source lines, or target lines, with their lengths and problems.

    raw: the lines as they were read, before repair.
    index: index in `raw` of the first line of the block.
    first: line number of the first line of the block in its file.
    lines: the lines. Invalid UTF-8 and NUL characters have been replaced.
    lengths: length of each line in characters.
    marks: one integer for each line, with a bit set for each problem of the line; see Kind.bit.
    keys: a hash of each line, or None if not computed. The hashes differ between processes.
    """

    raw: Raw
    index: int
    first: int
    lines: list[str]
    lengths: NDArray[numpy.int32]
    marks: Marks
    keys: NDArray[numpy.int64] | None

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, first: int, last: int) -> Block:
        """Return the lines from index `first` to `last` - 1 as a Block."""
        if first == 0 and last == len(self):
            return self
        at = slice(first, last)
        return replace(
            self,
            index=self.index + first,
            first=self.first + first,
            lines=self.lines[at],
            lengths=self.lengths[at],
            marks=self.marks[at],
            keys=None if self.keys is None else self.keys[at],
        )

    def place(self, index: int) -> str:
        """Return the file and the number of the line at this index, for messages: "a.ko, line 3"."""
        return f"{self.raw.name}, {self.raw.unit} {self.first + index}"

    def excerpt(self, index: int) -> str:
        """Return the beginning of the line at this index, at most LONGEST_EXCERPT characters, for messages.

        Control characters are replaced.
        """
        text = self.lines[index]
        return printable(text if len(text) <= LONGEST_EXCERPT else text[: LONGEST_EXCERPT - 1] + "…")


class Examiner:
    """Finds the problems of source lines, or of target lines, and replaces invalid UTF-8 and NUL characters.

    Call the object with all blocks of lines, in order.

    choices: `choices.longest` is the maximum length of a line.
    keyed: whether to compute hashes: a hash of each line, in Block.keys, and a hash of all lines, in the
        attribute `digest`.
    """

    def __init__(self, choices: Choices, *, keyed: bool):
        self.choices, self.keyed = choices, keyed
        self.digest = hashlib.sha256()

    def __call__(self, raw: Raw) -> Block:
        text, lines = raw.text, raw.text.split("\n")
        marks = numpy.zeros(len(lines), numpy.uint8) if raw.marks is None else raw.marks.copy()
        try:
            data = raw.data or text.encode()
        except UnicodeEncodeError:
            whole = list(map(to_bytes, lines))
            data = b"\n".join(whole)
            for index, line in enumerate(whole):
                repaired = line.decode("utf-8", "replace")
                if repaired != lines[index]:
                    lines[index] = repaired
                    marks[index] |= KINDS["invalid"].bit
        if self.keyed:
            self.digest.update(data)
            self.digest.update(b"\n")
        if "\0" in text:
            for index, each in enumerate(lines):
                if "\0" in each:
                    lines[index] = each.replace("\0", " ")
                    marks[index] |= KINDS["nul"].bit
        lengths = numpy.fromiter(map(len, lines), numpy.int32, len(lines))
        empty = (lengths == 0) | numpy.fromiter(map(str.isspace, lines), bool, len(lines))
        if any(map(text.__contains__, INVISIBLE)):
            empty |= [all(c.isspace() or c in INVISIBLE for c in line) for line in lines]
        # A malformed line has no text. It is reported as malformed, but not as empty.
        marks[empty & ((marks & KINDS["malformed"].bit) == 0)] |= KINDS["empty"].bit
        if self.choices.longest is not None:
            marks[lengths > self.choices.longest] |= KINDS["long"].bit
        keys = numpy.fromiter(map(hash, lines), numpy.int64, len(lines)) if self.keyed else None
        return Block(raw, 0, raw.first, lines, lengths, marks, keys)


Examiners = tuple[Examiner, Examiner]


class Chunk(NamedTuple):
    """Consecutive sentence pairs: a block of source lines, and a block of as many target lines.

    position: number of pairs before this chunk.
    reached: how many bytes or rows have been read so far, of Origin.size() in total.
    """

    source: Block
    target: Block
    position: int = 0
    reached: int = 0

    @property
    def pairs(self) -> int:
        """Number of pairs in this chunk."""
        return len(self.source)

    @property
    def sides(self) -> tuple[Block, Block]:
        """The source block and the target block."""
        return self.source, self.target

    def marks(self, choices: Choices) -> Marks:
        """Return one integer for each pair, with a bit set for each problem of the pair; see Kind.bit."""
        marks = self.source.marks | self.target.marks
        if choices.ratio is not None:
            one, other = (numpy.maximum(side.lengths, SHORT) for side in self.sides)
            uneven = numpy.maximum(one, other) > choices.ratio * numpy.minimum(one, other)
            if uneven.any():
                marks[uneven & ((marks & NO_TEXT) == 0)] |= KINDS["uneven"].bit
        return marks


class CountsDiffer(Exception):
    """Raised when two parallel files have different numbers of lines.

    paths: the source path and the target path, or their names.
    shared: number of lines of the shorter file.
    longer: 0 if the source file is longer, 1 if the target file is longer.
    rest: the extra lines of the longer file, which have not been read yet.
    encoding: the encoding of the files; None is UTF-8.
    """

    def __init__(
        self,
        paths: tuple[Any, Any],
        shared: int,
        longer: int,
        rest: Iterator[Block],
        encoding: str | None = None,
    ):
        super().__init__(f"{shown(paths[longer])} has more than {shared} lines, unlike the other file")
        self.paths, self.shared, self.longer, self.rest = paths, shared, longer, rest
        self.encoding = encoding


Blocks = Iterator[tuple[Block, Block]]


@dataclass(frozen=True)
class Origin:
    """Where sentence pairs are read from: files or a collection. It can be read any number of times.

    parts: the files that are read together, one group after the other; (()) for a collection.
    blocks: function that yields blocks of source lines and of as many target lines of one of `parts`. The
        examiners check the source lines and the target lines.
    encoding: the encoding of the files; None is UTF-8.
    rows: number of rows of a collection; 0 if it is unknown.
    aligned: whether line n of a target file translates line n of its source file.
    """

    parts: Sequence[tuple[Any, ...]]
    blocks: Callable[[tuple[Path, ...], Examiners], Blocks]
    encoding: str | None = None
    rows: int = 0
    aligned: bool = False

    @classmethod
    def parallel(cls, sources: Sequence[Path], targets: Sequence[Path], encoding: str | None) -> Origin:
        """Read parallel files: line n of a target file translates line n of its source file."""

        def blocks(part: tuple[Path, ...], examiners: Examiners) -> Blocks:
            source, target = part
            left = map(examiners[0], read_blocks(source, encoding))
            right = map(examiners[1], read_blocks(target, encoding))
            return _aligned(left, right, (source, target), encoding)

        return cls(tuple(zip(sources, targets, strict=True)), blocks, encoding, aligned=True)

    @classmethod
    def streams(cls, sources: Sequence[Place], targets: Sequence[Place], encoding: str | None) -> Origin:
        """Read parallel files, standard input ("-") or bytes, once, as their lines arrive."""

        def blocks(part: tuple[Any, ...], examiners: Examiners) -> Blocks:
            left, right = (
                map(examiner, place_blocks(place, other_encoding(encoding)))
                for examiner, place in zip(examiners, part, strict=True)
            )
            source, target = map(place_name, part)
            return _aligned(left, right, (source, target), encoding)

        return cls(tuple(zip(sources, targets, strict=True)), blocks, encoding)

    @classmethod
    def tables(cls, paths: Sequence[Path], columns: Columns, encoding: str | None) -> Origin:
        """Read TSV or CSV files. `columns`: source and target, as numbers from 1 or names in the header."""
        return cls._of_files(paths, lambda path: column_pairs(path, columns, encoding), encoding)

    @classmethod
    def records(cls, paths: Sequence[Path], fields: tuple[str, str], encoding: str | None) -> Origin:
        """Read JSON lines, JSON arrays or Parquet files. `fields`: the fields of source and target."""
        return cls._of_files(paths, lambda path: field_pairs(path, fields, encoding), encoding)

    @classmethod
    def collection(cls, rows: Iterable[Any], fields: tuple[str, str] | None = None) -> Origin:
        """Read a Python collection of (source, target), or of rows with a source and a target field."""
        count = len(rows) if isinstance(rows, Sized) else 0
        return cls([()], lambda part, examiners: _examined(list_pairs(rows, fields), examiners), rows=count)

    @classmethod
    def _of_files(
        cls, paths: Sequence[Path], read: Callable[[Path], Iterator[Two]], encoding: str | None
    ) -> Origin:
        parts = tuple((path,) for path in paths)
        return cls(parts, lambda part, examiners: _examined(read(part[0]), examiners), encoding)

    def size(self) -> int:
        """Return the size of the data in bytes or rows, the unit of Chunk.reached; 0 if it is unknown."""
        return self.rows + sum(part[0].stat().st_size for part in self.parts if part)

    def stamp(self) -> Stamp:
        """Return the size and the modification time of each file, to detect changes; () for a collection."""
        status = (checked_path(path).stat() for part in self.parts for path in part)
        return tuple((each.st_size, each.st_mtime_ns) for each in status)

    def chunks(self, examiners: Examiners) -> Iterator[Chunk]:
        """Yield all sentence pairs in chunks of consecutive pairs.

        examiners: two objects: the first checks the source lines, the second checks the target lines.
        """
        position = reached = 0
        for part in self.parts:
            for source, target in self.blocks(part, examiners):
                yield Chunk(source, target, position, reached + source.raw.reached)
                position += len(source)
            reached += part[0].stat().st_size if part else 0


def _examined(pairs: Iterator[Two], examiners: Examiners) -> Blocks:
    return ((examiners[0](source), examiners[1](target)) for source, target in pairs)


def _aligned(
    source: Iterator[Block], target: Iterator[Block], paths: tuple[Any, Any], encoding: str | None
) -> Iterator[tuple[Block, Block]]:
    """Yield the blocks of two parallel files, cut so that each two blocks have the same number of lines.

    source, target: the blocks of lines of each file.
    paths: the source path and the target path.
    encoding: the encoding of the files, for CountsDiffer.

    Raises CountsDiffer if one file ends before the other.
    """
    left, right, shared = next(source, None), next(target, None), 0
    while left is not None and right is not None:
        count = min(len(left), len(right))
        yield left.part(0, count), right.part(0, count)
        shared += count
        left = left.part(count, len(left)) if count < len(left) else next(source, None)
        right = right.part(count, len(right)) if count < len(right) else next(target, None)
    if left is not None:
        raise CountsDiffer(paths, shared, 0, chain([left], source), encoding)
    if right is not None:
        raise CountsDiffer(paths, shared, 1, chain([right], target), encoding)
