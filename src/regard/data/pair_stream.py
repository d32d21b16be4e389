"""Read sentence pairs to score, align or evaluate: once, in order, from files or standard input.

Unlike Pairs, a PairStream drops no pair, so that the output of a command has one line for each pair. Empty
and long sentences are kept. Invalid UTF-8 is replaced by U+FFFD, and lines with invalid UTF-8 are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Protocol

import numpy

from regard.data.data_report import odd_side, refusal
from regard.data.line_io import Lines, place_name
from regard.data.pair_blocks import Examiner, JsonLines, Tabbed
from regard.data.pair_checks import KINDS, Choices
from regard.data.read_text import check_likely_encoding, checked_path
from regard.data.text_encoding import other_encoding
from regard.errors import DataError, message, shown

__all__ = ["LinePairs", "PairStream", "RowPairs", "in_batches"]

INVALID = KINDS["invalid"].bit

KEEP_ALL = Choices(invalid="replace", longest=None, ratio=None)
"""Choices of a PairStream: malformed lines raise DataError, invalid UTF-8 is replaced, no pair is dropped."""


class PairStream(Protocol):
    """Sentence pairs that are read once, during iteration, from files or standard input. All are kept."""

    @property
    def name(self) -> str:
        """The names of all files, for messages: "a.ko, a.en"."""

    @property
    def first_line(self) -> int:
        """Line number of the first pair in each file: 2 if the files have a header line, otherwise 1."""

    @property
    def repaired(self) -> int:
        """Number of lines read so far that had invalid UTF-8."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield (source, target) for each pair. If a pair cannot be read, raise DataError with its line."""


@dataclass
class LinePairs:
    """Sentence pairs from parallel files, one sentence per line.

    sources: the source files. Each is a file name, "-" for standard input, or the text itself as bytes.
    targets: the target files, as many as `sources`, in the same form.
    encoding: the encoding of the files; None is UTF-8.

    >>> list(LinePairs([b"a\\nb"], [b"x\\ny"]))
    [('a', 'x'), ('b', 'y')]
    """

    sources: Sequence[str | bytes]
    targets: Sequence[str | bytes]
    encoding: str | None = None
    first_line: int = 1
    sides: list[Lines] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join(map(place_name, (*self.sources, *self.targets)))

    @property
    def repaired(self) -> int:
        return sum(side.repaired for side in self.sides)

    @property
    def invalid(self) -> list[bytes]:
        """The first lines with invalid bytes."""
        return [line for side in self.sides for line in side.invalid]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for places in zip(self.sources, self.targets, strict=True):
            sides = Lines([places[0]], encoding=self.encoding), Lines([places[1]], encoding=self.encoding)
            self.sides.extend(sides)
            for number, (source, target) in enumerate(zip_longest(*sides)):
                if source is None or target is None:
                    short, long = map(place_name, places if source is None else reversed(places))
                    problem = f"there is no line {number + 1}, but {long} has more than {number:,} lines"
                    raise DataError(message(short, problem, expected="the same number of lines"))
                yield source, target


@dataclass
class RowPairs:
    """Sentence pairs from files with source and target on one line: tab-separated columns or JSON objects.

    origin: the files and their format.
    repaired: number of pairs read so far that had invalid UTF-8.
    """

    origin: Tabbed | JsonLines
    repaired: int = 0

    @classmethod
    def read(
        cls,
        tsv: Sequence[str] | None,
        jsonl: Sequence[str] | None,
        columns: tuple[int, int] | tuple[str, str] = (1, 2),
        fields: tuple[str, str] = ("source", "target"),
        encoding: str | None = None,
    ) -> RowPairs:
        """Return the sentence pairs of files with columns (TSV, CSV) or of records (JSON, Parquet).

        tsv: the files with columns; None or empty to read `jsonl`.
        jsonl: the files of records.
        columns: the source column and the target column of a TSV file, as numbers from 1 or as names.
        fields: the names of the source field and the target field of a record.
        encoding: the encoding of the files; None is UTF-8.
        """
        if tsv:
            return cls(Tabbed(_checked(tsv), columns, encoding))
        return cls(JsonLines(_checked(jsonl or ()), fields, encoding))

    @property
    def name(self) -> str:
        return ", ".join(map(shown, self.origin.paths))

    @property
    def first_line(self) -> int:
        return 2 if isinstance(self.origin, Tabbed) and isinstance(self.origin.columns[0], str) else 1

    def __iter__(self) -> Iterator[tuple[str, str]]:
        examiners = Examiner(KEEP_ALL, keyed=False), Examiner(KEEP_ALL, keyed=False)
        for chunk in self.origin.chunks(examiners):
            marks = chunk.marks(KEEP_ALL)
            invalid = numpy.flatnonzero(marks & INVALID)
            if invalid.size and not self.repaired and other_encoding(self.origin.encoding) is None:
                block, line = odd_side(chunk, int(invalid[0]), INVALID), int(invalid[0])
                check_likely_encoding(block.raw, block.index + line, block.place(line))
            self.repaired += len(invalid)
            refused = numpy.flatnonzero(marks & KEEP_ALL.bits("error"))
            end = int(refused[0]) if refused.size else chunk.pairs
            yield from zip(chunk.source.lines[:end], chunk.target.lines[:end], strict=True)
            if refused.size:
                raise refusal(chunk, end, KEEP_ALL, int(marks[end]), choosable=False)


def _checked(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(map(checked_path, paths))


def in_batches(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Group sentence pairs into batches. For each batch, yield the list of sources and the list of targets.

    pairs: (source, target) of each pair.
    size: number of pairs in a batch.

    >>> list(in_batches([("a", "x"), ("b", "y"), ("c", "z")], 2))
    [(['a', 'b'], ['x', 'y']), (['c'], ['z'])]
    """
    iterator = iter(pairs)
    while batch := list(islice(iterator, size)):
        yield [source for source, _ in batch], [target for _, target in batch]
