"""Reading: the bytes of text files in blocks of whole lines, plain or gzip.

A line ends at "\\n" and nowhere else: str.splitlines would also split at U+2028, U+0085, form feeds and more,
on one side of a parallel text and not on the other. A last line without "\\n" counts; a last "\\n" begins no
other line.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import numpy
from numpy.typing import NDArray

from regard.data.pair_checks import KINDS
from regard.errors import DataError, message, shown

__all__ = ["Marks", "Raw", "checked_path", "read_blocks", "read_lines"]

Marks = NDArray[numpy.uint8]

BLOCK = 1 << 20
"""Bytes read at a time: few enough to stay in a processor's cache while they are looked at."""

LONGEST_LINE = 1 << 26
"""A file with a longer line than this, in bytes, is no text; holding on would fill the memory."""

RETURN = KINDS["return"].bit

RETURNS = "if its lines end in \\r alone, make it \\n: tr '\\r' '\\n' < old > new"
UTF_16 = "if this is UTF-16, as NUL bytes suggest, convert it: iconv -f UTF-16LE -t UTF-8"

FOREIGN = {
    b"\xff\xfe": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"\xfd7zXZ\x00": ("compressed with xz", "unpack it first, or pack it with gzip"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first, or pack it with gzip"),
    b"BZh91AY&SY": ("compressed with bzip2", "unpack it first, or pack it with gzip"),
    b"PAR1": ("a Parquet file", "read it with datasets, then pairs_from_dataset"),
}
"""How files begin that are not UTF-8 text, what they are, and what to do."""


@dataclass(frozen=True, eq=False, slots=True)
class Raw:
    """Whole lines as bytes, each ended by "\\n": of which file, what is known about each line, how far it is.

    marks: bits of KINDS, one number a line, or None where there is nothing to mark. unit: what a line is
    called in messages. reached: how much of its file, or of its rows, has been read by now. reasons: why
    lines are malformed; hint: what to check then. whole: the lines of the file, where these are parts of
    them.
    """

    name: str
    data: bytes
    marks: Marks | None = None
    unit: str = "line"
    reached: int = 0
    reasons: Mapping[int, str] = field(default_factory=dict)
    hint: str = ""
    whole: Sequence[bytes] = ()

    def line(self, index: int) -> bytes:
        """A line as it stands in its file."""
        return self.whole[index] if self.whole else self.data.split(b"\n")[index]


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there; read more than once, so a pipe will not do."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(message(shown(path), "is a folder", expected="a text file, plain or gzip"))
    if path.exists():
        hint = "save it to a file first: it is read more than once"
        raise DataError(message(shown(path), "is not a plain file", hint=hint))
    hint = ""
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file():
        hint = f"there is {shown(packed)}, which can be read as it is"
    elif not path.parent.is_dir():
        hint = f"there is no folder {shown(path.parent)} either"
    raise DataError(message(shown(path), "there is no such file", hint=hint))


def read_blocks(path: Path) -> Iterator[Raw]:
    """The lines of a file, many at a time, without byte order mark and without "\\r" before "\\n"."""
    try:
        with open(path, "rb") as file:
            yield from _blocks(path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        hint = "unpack it with gzip -d to see how much is there, or fetch it anew"
        raise DataError(
            message(shown(path), f"gzip data that is cut off or damaged ({error})", hint=hint)
        ) from None
    except OSError as error:
        raise DataError(message(shown(path), f"cannot be read ({error.strerror or error})")) from None


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """The lines of a small file as text; refuses what is not UTF-8, and says where.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.txt")
    ...     _ = path.write_bytes(b"one\\r\\ntwo")
    ...     list(read_lines(path))
    ['one', 'two']
    """
    number = 0
    for raw in read_blocks(checked_path(path)):
        for line in raw.data.split(b"\n")[:-1]:
            number += 1
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                place = f"{shown(path)}, line {number}"
                raise DataError(message(place, f"not valid UTF-8 at byte {error.start + 1}")) from None


def _blocks(path: Path, file: BinaryIO) -> Iterator[Raw]:
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    began, ended, rest, lines = False, False, b"", 0
    while data := stream.read(BLOCK):
        if not began:
            data, began = _begun(path, data), True
        end = data.rfind(b"\n") + 1
        if end:
            ended = True
            lines += data.count(b"\n")
            yield _whole(path, rest + data[:end], file.tell())
            rest = data[end:]
        else:
            rest += data
        if len(rest) > LONGEST_LINE:
            place, problem = f"{shown(path)}, line {lines + 1}", f"longer than {LONGEST_LINE >> 20} MiB"
            raise DataError(message(place, problem, hint=RETURNS if b"\r" in rest else ""))
    if not ended and b"\r" in rest.rstrip(b"\r"):
        problem = "one line without \\n, and with \\r inside"
        raise DataError(message(shown(path), problem, expected="lines that end in \\n", hint=RETURNS))
    if rest:
        yield _whole(path, rest + b"\n", file.tell())


def _begun(path: Path, data: bytes) -> bytes:
    """The first bytes of a text, without byte order mark; what is known not to be UTF-8 is refused."""
    for start, (kind, hint) in FOREIGN.items():
        if data.startswith(start):
            raise DataError(message(shown(path), f"this is {kind}", expected="UTF-8 text", hint=hint))
    # UTF-16 without a byte order mark: every other byte of what begins in Latin letters is NUL.
    head = data[:8]
    if len(head) == 8 and any(head[::2]) != any(head[1::2]):
        hint = f"convert it: iconv -f UTF-16{'LE' if head[0] else 'BE'} -t UTF-8"
        raise DataError(message(shown(path), "this is UTF-16 text", expected="UTF-8 text", hint=hint))
    return data.removeprefix(b"\xef\xbb\xbf")


def _whole(path: Path, data: bytes, reached: int) -> Raw:
    if b"\r" not in data or b"\r\n" not in data:  # to search for one byte is much faster than for two
        return Raw(shown(path), data, reached=reached)
    bytes_ = numpy.frombuffer(data, numpy.uint8)
    # The byte before a first "\n" at 0 is the last one, another "\n": no harm.
    returns = bytes_[numpy.flatnonzero(bytes_ == ord("\n")) - 1] == ord("\r")
    return Raw(
        shown(path), data.replace(b"\r\n", b"\n"), returns.astype(numpy.uint8) * RETURN, reached=reached
    )
