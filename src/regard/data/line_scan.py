"""Examining: what is odd about each line of one side, found in whole blocks of bytes.

Blocks with nothing odd, nearly all of them, cost a few passes of compiled code; lines are looked at one by
one only where something is odd.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from regard.data.pair_checks import KINDS, Choices
from regard.data.read_text import Marks, Raw
from regard.errors import printable

__all__ = ["Block", "Examiner"]

NEWLINE = ord("\n")
LONGEST_EXCERPT = 60

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Characters without width: no white space to Python, but there is nothing to see in them."""

BLANK_LEADS = numpy.zeros(256, bool)
"""The bytes with which a character can begin that has nothing to see: white space, or one of INVISIBLE."""
BLANK_LEADS[[*range(9, 14), *range(28, 33), 0xC2, 0xE1, 0xE2, 0xE3, 0xEF]] = True


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Some lines of one side: their text repaired, with how long each is and what is odd about it.

    first: the number of the first line in its file. data: valid UTF-8, lines ended by "\\n"; ends: where.
    lengths: in characters. marks: bits of KINDS. keys: a number for each line, the same for the same line in
    this run, or None.
    """

    raw: Raw
    first: int
    data: bytes
    ends: NDArray[numpy.intp]
    lengths: NDArray[numpy.int32]
    marks: Marks
    keys: NDArray[numpy.int64] | None

    def __len__(self) -> int:
        return len(self.ends)

    def lines(self) -> list[str]:
        """The lines as text."""
        return self.data.decode("utf-8").split("\n")[:-1]

    def place(self, index: int) -> str:
        """Where a line is, for messages."""
        return f"{self.raw.name}, {self.raw.unit} {self.first + index}"

    def excerpt(self, index: int) -> str:
        """The beginning of a line, on one line, with nothing that a terminal would obey."""
        start = self.ends[index - 1] + 1 if index else 0
        line = self.data[start : min(int(self.ends[index]), int(start) + 4 * LONGEST_EXCERPT)]
        text = line.decode("utf-8", "ignore")
        text = text if len(text) <= LONGEST_EXCERPT else text[: LONGEST_EXCERPT - 1] + "…"
        return printable(text)


class Examiner:
    """Examines the blocks of one side in their order; counts lines, and keeps a digest of all it has read."""

    def __init__(self, choices: Choices, *, keyed: bool):
        self.choices, self.keyed = choices, keyed
        self.digest = hashlib.sha256()
        self.number = 1

    def __call__(self, raw: Raw) -> Block:
        if self.keyed:
            self.digest.update(raw.data)
        data, wrong = _decodable(raw.data)
        bytes_ = numpy.frombuffer(data, numpy.uint8)
        ends = numpy.flatnonzero(bytes_ == NEWLINE)
        marks = numpy.zeros(len(ends), numpy.uint8) if raw.marks is None else raw.marks.copy()
        marks[wrong] |= KINDS["invalid"].bit
        if b"\0" in data:
            marks[numpy.searchsorted(ends, numpy.flatnonzero(bytes_ == 0))] |= KINDS["nul"].bit
            data = data.replace(b"\0", b" ")
            bytes_ = numpy.frombuffer(data, numpy.uint8)
        lengths = _lengths(data, bytes_, ends)
        marks[_blank(data, bytes_, ends)] |= KINDS["empty"].bit
        # What is malformed has no text: that it is empty too would be said twice.
        marks[(marks & KINDS["malformed"].bit) != 0] &= ~KINDS["empty"].bit & 0xFF
        if self.choices.longest is not None:
            marks[lengths > self.choices.longest] |= KINDS["long"].bit
        block = Block(raw, self.number, data, ends, lengths, marks, self._keys(data, len(ends)))
        self.number += len(ends)
        return block

    def _keys(self, data: bytes, count: int) -> NDArray[numpy.int64] | None:
        """Python's own keyed 64-bit hash of each line: other numbers in another run, so never kept."""
        if not self.keyed:
            return None
        return numpy.fromiter(map(hash, data.split(b"\n")), numpy.int64, count)


def _decodable(data: bytes) -> tuple[bytes, list[int]]:
    """The lines as valid UTF-8, wrong bytes replaced by U+FFFD; and which lines were wrong."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return data, []
    wrong, lines = [], data.split(b"\n")
    for index, line in enumerate(lines):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            wrong.append(index)
            lines[index] = line.decode("utf-8", "replace").encode("utf-8")
    return b"\n".join(lines), wrong


def _lengths(data: bytes, bytes_: Marks, ends: NDArray[numpy.intp]) -> NDArray[numpy.int32]:
    """How many characters each line has."""
    if data.isascii():
        return (numpy.diff(ends, prepend=-1) - 1).astype(numpy.int32)
    # All bytes but 0x80 to 0xBF begin a character: as signed numbers, those from -64 on. "\n" is one more.
    begins = (bytes_.view(numpy.int8) >= -64).view(numpy.uint8)
    return numpy.add.reduceat(begins, _starts(ends), dtype=numpy.int32) - numpy.int32(1)


def _blank(data: bytes, bytes_: Marks, ends: NDArray[numpy.intp]) -> list[int]:
    """The lines with nothing to see in them; only those that begin with something like it are read."""
    starts = _starts(ends)
    nothing = starts == ends
    suspects = numpy.flatnonzero(BLANK_LEADS[bytes_[starts]] & ~nothing)
    blank = [i for i in suspects.tolist() if not _visible(data[starts[i] : ends[i]])]
    return [*numpy.flatnonzero(nothing).tolist(), *blank]


def _starts(ends: NDArray[numpy.intp]) -> NDArray[numpy.intp]:
    """Where lines begin that end there; a block has at least one."""
    return numpy.concatenate(([0], ends[:-1] + 1))


def _visible(line: bytes) -> bool:
    return any(not c.isspace() and c not in INVISIBLE for c in line.decode("utf-8"))
