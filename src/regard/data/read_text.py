"""Read text files, plain or gzip, as bytes, in blocks of whole lines.

A line ends at "\\n" only; the last line need not end with "\\n". str.splitlines() would also split at other
characters, such as U+2028, U+0085 and form feeds. If such a character occurs in only one of two parallel
files, the line counts would differ.
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
from regard.errors import DataError, Setting, message, shown

__all__ = ["Marks", "Raw", "checked_path", "read_blocks", "read_lines"]

Marks = NDArray[numpy.uint8]

BLOCK = 1 << 20
"""Number of bytes of a file that are read at a time. They fit into the CPU cache, so scans are fast."""

LONGEST_LINE = 1 << 26
"""Maximum length of a line in bytes. A file with a longer line is probably not text, and the line could use
up all memory."""

RETURN = KINDS["return"].bit

RETURNS = "if its lines end with \\r only, convert them: tr '\\r' '\\n' < old > new"
LATIN_1 = "if this is Latin-1 (ISO 8859-1), convert it: iconv -f ISO-8859-1 -t UTF-8"
UTF_16 = "if this is UTF-16, as NUL bytes suggest, convert it: iconv -f UTF-16LE -t UTF-8"

FOREIGN = {
    b"\xff\xfe": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"\xfd7zXZ\x00": ("compressed with xz", "unpack it first, or compress it with gzip"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first, or compress it with gzip"),
    b"BZh91AY&SY": ("compressed with bzip2", "unpack it first, or compress it with gzip"),
    b"PAR1": ("a Parquet file", "read it with the package datasets, and call pairs_from_dataset()"),
}
"""The first bytes of files that are not UTF-8 text, with a description of the file type and a hint."""


@dataclass(frozen=True, eq=False, slots=True)
class Raw:
    """A block of whole lines of a file as bytes, before the lines are checked.

    name: name of the file, for messages.
    data: the lines, each ended by "\\n".
    marks: one integer for each line, with a bit set for each problem that the reader of the format has found
        (see Kind.bit). None: no problems.
    unit: what a line is called in messages: "line", "row" or "pair".
    reached: number of bytes or rows read so far, including this block.
    reasons: for each malformed line, its index in the block, and why it is malformed.
    remedy: the name of the setting that the user should check if a line is malformed, for the error message.
    whole: if `data` has only one column of the file, the lines with all columns; otherwise empty.
    """

    name: str
    data: bytes
    marks: Marks | None = None
    unit: str = "line"
    reached: int = 0
    reasons: Mapping[int, str] = field(default_factory=dict)
    remedy: Setting | None = None
    whole: Sequence[bytes] = ()

    def line(self, index: int) -> bytes:
        """Return the line at this index of the block, as it is in the file, with all its columns."""
        return self.whole[index] if self.whole else self.data.split(b"\n")[index]


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path if it is a regular file, otherwise raise DataError.

    A pipe is not allowed, because files are read more than once, and a pipe can be read only once.
    """
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(message(shown(path), "this path is a folder", expected="a text file, plain or gzip"))
    if path.exists():
        hint = "save the content to a file first, because the file is read more than once"
        raise DataError(message(shown(path), "this path is not a regular file", hint=hint))
    hint = ""
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file():
        hint = f"use {shown(packed)}: gzip files can be read directly"
    elif not path.parent.is_dir():
        hint = f"check the path: the folder {shown(path.parent)} does not exist either"
    raise DataError(message(shown(path), "there is no such file", hint=hint))


def read_blocks(path: Path) -> Iterator[Raw]:
    """Yield the lines of a file in blocks, without byte order mark and without "\\r" before "\\n"."""
    try:
        with open(path, "rb") as file:
            yield from _blocks(path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        hint = "check the file with gzip -t, or download it again"
        raise DataError(
            message(shown(path), f"the gzip data is truncated or damaged ({error})", hint=hint)
        ) from None
    except OSError as error:
        raise DataError(
            message(shown(path), f"the file cannot be read ({error.strerror or error})")
        ) from None


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a file (plain or gzip) as strings, without line ends.

    Raises DataError with the line number and the byte if a line is not valid UTF-8.

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
                raise DataError(
                    message(place, f"the line is not valid UTF-8 at byte {error.start + 1}", hint=LATIN_1)
                ) from None


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
            place = f"{shown(path)}, line {lines + 1}"
            problem = f"the line is longer than {LONGEST_LINE >> 20} MiB"
            raise DataError(message(place, problem, hint=RETURNS if b"\r" in rest else ""))
    if not ended and b"\r" in rest.rstrip(b"\r"):
        problem = "the file contains \\r but no \\n"
        raise DataError(message(shown(path), problem, expected="lines that end with \\n", hint=RETURNS))
    if rest:
        yield _whole(path, rest + b"\n", file.tell())


def _begun(path: Path, data: bytes) -> bytes:
    """Return the first bytes of a file without the byte order mark of UTF-8.

    Raises DataError if the bytes show that the file has another encoding or format (UTF-16; see FOREIGN).
    """
    for start, (kind, hint) in FOREIGN.items():
        if data.startswith(start):
            raise DataError(message(shown(path), f"this file is {kind}", expected="UTF-8 text", hint=hint))
    # Detect UTF-16 without byte order mark: if the text begins with Latin letters, every second byte is NUL.
    head = data[:8]
    if len(head) == 8 and any(head[::2]) != any(head[1::2]):
        hint = f"convert it: iconv -f UTF-16{'LE' if head[0] else 'BE'} -t UTF-8"
        raise DataError(message(shown(path), "this file is UTF-16 text", expected="UTF-8 text", hint=hint))
    return data.removeprefix(b"\xef\xbb\xbf")


def _whole(path: Path, data: bytes, reached: int) -> Raw:
    if b"\r" not in data or b"\r\n" not in data:  # searching for one byte first is much faster
        return Raw(shown(path), data, reached=reached)
    bytes_ = numpy.frombuffer(data, numpy.uint8)
    # Look at the byte before each "\n". For a "\n" at index 0, this is index -1, the last byte of the block.
    # The last byte is always "\n", so it is never counted as "\r".
    returns = bytes_[numpy.flatnonzero(bytes_ == ord("\n")) - 1] == ord("\r")
    return Raw(
        shown(path), data.replace(b"\r\n", b"\n"), returns.astype(numpy.uint8) * RETURN, reached=reached
    )
