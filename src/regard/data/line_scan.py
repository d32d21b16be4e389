"""Line scan: find the problems of each source line or target line, one block of lines at a time.

A few vectorised operations check a whole block. Only if the block has problems, its lines are examined one by
one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from regard.data.pair_checks import KINDS, Choices
from regard.data.read_text import Marks, Raw
from regard.errors import printable

__all__ = ["Block", "Examiner"]

NEWLINE = ord("\n")
LONGEST_EXCERPT = 60

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Zero-width characters. A line of only these characters counts as empty, although isspace() is False."""

BLANK_LEADS = numpy.zeros(256, bool)
"""A bool array, (256,), True for each byte with which a white-space or zero-width character can begin."""
BLANK_LEADS[[*range(9, 14), *range(28, 33), 0xC2, 0xE1, 0xE2, 0xE3, 0xEF]] = True


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Consecutive source lines, or target lines, with their lengths and problems.

    Invalid UTF-8 and NUL bytes have been replaced.

    raw: the lines as they were read, before repair.
    index: index in `raw` of the first line of the block.
    first: line number of the first line of the block in its file.
    data: the lines of `raw` in valid UTF-8, each ended by "\\n".
    start: position in `data` at which the first line of the block starts.
    ends: positions in `data` of the "\\n" of the lines of the block.
    lengths: length of each line in characters.
    marks: one integer for each line, with a bit set for each problem of the line; see Kind.bit.
    keys: a hash of each line, or None if not computed. The hashes differ between processes.
    """

    raw: Raw
    index: int
    first: int
    data: bytes
    start: int
    ends: NDArray[numpy.intp]
    lengths: NDArray[numpy.int32]
    marks: Marks
    keys: NDArray[numpy.int64] | None

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, first: int, last: int) -> Block:
        """Return the lines from index `first` to `last` - 1 as a Block."""
        if first == 0 and last == len(self):
            return self
        at = slice(first, last)
        return replace(
            self,
            index=self.index + first,
            first=self.first + first,
            start=int(self.ends[first - 1]) + 1 if first else self.start,
            ends=self.ends[at],
            lengths=self.lengths[at],
            marks=self.marks[at],
            keys=None if self.keys is None else self.keys[at],
        )

    def lines(self) -> list[str]:
        """Return the repaired lines of the block as strings, without "\\n"."""
        return self.data[self.start : int(self.ends[-1])].decode("utf-8").split("\n")

    def place(self, index: int) -> str:
        """Return the file and the number of the line at this index, for messages: "a.ko, line 3"."""
        return f"{self.raw.name}, {self.raw.unit} {self.first + index}"

    def excerpt(self, index: int) -> str:
        """Return the beginning of the line at this index, at most LONGEST_EXCERPT characters, for messages.

        Control characters are replaced.
        """
        start = self.ends[index - 1] + 1 if index else self.start
        line = self.data[start : min(int(self.ends[index]), int(start) + 4 * LONGEST_EXCERPT)]
        text = line.decode("utf-8", "ignore")
        text = text if len(text) <= LONGEST_EXCERPT else text[: LONGEST_EXCERPT - 1] + "…"
        return printable(text)


class Examiner:
    """Finds the problems of source lines, or of target lines, and replaces invalid UTF-8 and NUL bytes.

    Call the object with all blocks of lines, in order.

    choices: `choices.longest` is the maximum length of a line.
    keyed: whether to compute hashes: a hash of each line, in Block.keys, and a hash of all lines, in the
        attribute `digest`.
    """

    def __init__(self, choices: Choices, *, keyed: bool):
        self.choices, self.keyed = choices, keyed
        self.digest = hashlib.sha256()
        self.number = 1

    def __call__(self, raw: Raw) -> Block:
        if self.keyed:
            self.digest.update(raw.data)
        if raw.first is not None:
            self.number = raw.first
        data, invalid = _decodable(raw.data)
        bytes_ = numpy.frombuffer(data, numpy.uint8)
        ends = numpy.flatnonzero(bytes_ == NEWLINE)
        marks = numpy.zeros(len(ends), numpy.uint8) if raw.marks is None else raw.marks.copy()
        marks[invalid] |= KINDS["invalid"].bit
        if b"\0" in data:
            marks[numpy.searchsorted(ends, numpy.flatnonzero(bytes_ == 0))] |= KINDS["nul"].bit
            data = data.replace(b"\0", b" ")
            bytes_ = numpy.frombuffer(data, numpy.uint8)
        lengths = _lengths(data, bytes_, ends)
        marks[_blank(data, bytes_, ends)] |= KINDS["empty"].bit
        # A malformed line has no text. It is reported as malformed, but not as empty.
        marks[(marks & KINDS["malformed"].bit) != 0] &= ~KINDS["empty"].bit & 0xFF
        if self.choices.longest is not None:
            marks[lengths > self.choices.longest] |= KINDS["long"].bit
        block = Block(raw, 0, self.number, data, 0, ends, lengths, marks, self._keys(data, len(ends)))
        self.number += len(ends)
        return block

    def _keys(self, data: bytes, count: int) -> NDArray[numpy.int64] | None:
        """Return the hash() of each line, or None if `keyed` is False.

        Python's hash() of the same bytes differs between processes, so the hashes must not be saved.
        """
        if not self.keyed:
            return None
        return numpy.fromiter(map(hash, data.split(b"\n")), numpy.int64, count)


def _decodable(data: bytes) -> tuple[bytes, list[int]]:
    """Replace invalid UTF-8 by U+FFFD. Return the repaired data and the indices of the repaired lines."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return data, []
    invalid, lines = [], data.split(b"\n")
    for index, line in enumerate(lines):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            invalid.append(index)
            lines[index] = line.decode("utf-8", "replace").encode("utf-8")
    return b"\n".join(lines), invalid


def _lengths(data: bytes, bytes_: Marks, ends: NDArray[numpy.intp]) -> NDArray[numpy.int32]:
    """Return the length of each line in characters, without "\\n".

    data: the lines in valid UTF-8, each ended by "\\n".
    bytes_: the same data as an array of bytes.
    ends: the position of each "\\n".
    """
    if data.isascii():
        return (numpy.diff(ends, prepend=-1) - 1).astype(numpy.int32)
    # Count the first bytes of characters: all bytes except 0x80 to 0xBF. As int8, these first bytes are >=
    # -64. Then subtract 1 for the "\n" at the end of each line.
    begins = (bytes_.view(numpy.int8) >= -64).view(numpy.uint8)
    return numpy.add.reduceat(begins, _starts(ends), dtype=numpy.int32) - numpy.int32(1)


def _blank(data: bytes, bytes_: Marks, ends: NDArray[numpy.intp]) -> list[int]:
    """Return the indices of blank lines: empty lines, and lines of white space or zero-width characters.

    To save time, a line is decoded only if its first byte can begin a blank character (BLANK_LEADS).
    """
    starts = _starts(ends)
    empty = starts == ends
    candidates = numpy.flatnonzero(BLANK_LEADS[bytes_[starts]] & ~empty)
    blank = [i for i in candidates.tolist() if not _visible(data[starts[i] : ends[i]])]
    return [*numpy.flatnonzero(empty).tolist(), *blank]


def _starts(ends: NDArray[numpy.intp]) -> NDArray[numpy.intp]:
    """Return the position in the data at which each line starts.

    ends: the position of each "\\n"; at least one.
    """
    return numpy.concatenate(([0], ends[:-1] + 1))


def _visible(line: bytes) -> bool:
    return any(not c.isspace() and c not in INVISIBLE for c in line.decode("utf-8"))
