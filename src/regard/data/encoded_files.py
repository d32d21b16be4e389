"""The file format of encoded pairs: flat files that are written once and verified when they are opened.

A folder holds these files:

    source      all source tokens, then int64 offsets: the start of each sentence and the end of the last
    target      all target tokens, then their offsets
    numbers     the position of each kept pair in the original data, int64
    header.json sizes, dtypes and checksums of the files
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from regard.data.encoded_pairs import EncodedPairs, Reader, Side
from regard.errors import DataError, message
from regard.files.atomic_io import flush_folder, naming_file, write_all
from regard.files.untrusted import open_regular, parse_json, read_limited

__all__ = ["EncodedChunk", "open_stored", "store"]

SIDES = ("source", "target")

LARGE = 2**27
"""If the tokens in a file take more bytes than this, they are read with Reader, not through a memory map.

A memory map of a large file would soon load the whole file into memory (see Reader)."""


class EncodedChunk(NamedTuple):
    """Some encoded sentence pairs, which are written to the files together.

    rows: two lists: the token ids of each source sentence, and the token ids of each target sentence.
    numbers: position of each pair in the original data.
    skipped: number of pairs that were dropped because they were too long.
    truncated: number of pairs that were cut because they were too long.
    """

    rows: tuple[list[list[int]], list[list[int]]]
    numbers: NDArray[numpy.int64]
    skipped: int
    truncated: int


class Written:
    """Writes a new file and computes the checksum of its content. It is a context manager.

    At the end of the `with` block, the content is flushed to disk.
    """

    def __init__(self, path: Path):
        self.path = path
        with naming_file(path):
            self.file = path.open("xb", buffering=0)
        self.checksum = 0

    def put(self, content: bytes) -> None:
        """Append bytes to the file, and update its checksum."""
        with naming_file(self.path):
            write_all(self.file.fileno(), content)
        self.checksum = zlib.crc32(content, self.checksum)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.file, naming_file(self.path):
            os.fsync(self.file.fileno())


def store(folder: Path, key: str, chunks: Iterable[EncodedChunk], sizes: tuple[int, int]) -> None:
    """Write encoded sentence pairs into an empty folder.

    key: the cache key, a hash of the data, tokenizers and settings. It is written to the header, so that
        open_stored() can detect a folder with other data.
    chunks: the encoded pairs.
    sizes: sizes of the two vocabularies, which determine whether a token takes two bytes or four.
    """
    dtypes = [numpy.dtype(numpy.uint16 if size <= 2**16 else numpy.uint32) for size in sizes]
    lengths: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    pairs = skipped = truncated = 0
    with contextlib.ExitStack() as stack:
        *files, numbers = [stack.enter_context(Written(folder / name)) for name in (*SIDES, "numbers")]
        for chunk in chunks:
            for file, rows, dtype, counted in zip(files, chunk.rows, dtypes, lengths, strict=True):
                counted.append(numpy.fromiter(map(len, rows), numpy.int32, len(rows)))
                flat = itertools.chain.from_iterable(rows)
                file.put(numpy.fromiter(flat, dtype, int(counted[-1].sum(dtype=numpy.int64))).tobytes())
            numbers.put(chunk.numbers.astype(numpy.int64).tobytes())
            pairs, skipped = pairs + len(chunk.numbers), skipped + chunk.skipped
            truncated += chunk.truncated
        tokens = []
        for file, dtype, counted in zip(files, dtypes, lengths, strict=True):
            offsets = numpy.zeros(pairs + 1, numpy.int64)
            if counted:
                numpy.cumsum(numpy.concatenate(counted), out=offsets[1:])
            tokens.append(int(offsets[-1]))
            file.put(bytes(_padding(tokens[-1], dtype)) + offsets.tobytes())
    header = {
        "key": key,
        "pairs": pairs,
        "skipped": skipped,
        "truncated": truncated,
        "dtypes": [dtype.name for dtype in dtypes],
        "tokens": tokens,
        "checksums": [file.checksum for file in (*files, numbers)],
    }
    with Written(folder / "header.json") as file:
        file.put(json.dumps({"header": header, "checksum": _checksum(header)}, indent=1).encode())
    flush_folder(folder)


def open_stored(folder: Path, key: str) -> EncodedPairs:
    """Verify the checksums of all files in a folder, and open the pairs in it as memory maps.

    Raises DataError if a file is missing or damaged, or if `key` is not the key in the header.
    """
    try:
        return _opened(folder, _header(folder / "header.json", key))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        problem = f"the header of this cache is damaged ({type(error).__name__})"
        raise DataError(message(str(folder / "header.json"), problem)) from None


def _opened(folder: Path, header: dict[str, Any]) -> EncodedPairs:
    count = header["pairs"]
    *checksums, numbers_checksum = header["checksums"]
    sides = []
    for name, kind, tokens, checksum in zip(
        SIDES, header["dtypes"], header["tokens"], checksums, strict=True
    ):
        dtype = numpy.dtype(kind)
        begin = tokens * dtype.itemsize + _padding(tokens, dtype)
        mapped = _mapped(folder / name, begin + 8 * (count + 1), checksum)
        offsets = numpy.frombuffer(mapped, numpy.int64, count + 1, begin)
        reader = Reader(folder / name) if begin > LARGE and hasattr(os, "pread") else None
        sides.append(Side(numpy.frombuffer(mapped, dtype, tokens), offsets, reader))
    numbers = numpy.frombuffer(_mapped(folder / "numbers", 8 * count, numbers_checksum), numpy.int64, count)
    return EncodedPairs(sides[0], sides[1], numbers, header["skipped"], header["truncated"])


def _padding(tokens: int, dtype: numpy.dtype[Any]) -> int:
    """Return the number of padding bytes after the tokens; they align the int64 offsets to 8 bytes."""
    return -tokens * dtype.itemsize % 8


def _checksum(header: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())


def _header(path: Path, key: str) -> dict[str, Any]:
    try:
        content = parse_json(read_limited(path, "json"))
        header: dict[str, Any] = content["header"]
        if content["checksum"] == _checksum(header) and header["key"] == key:
            return header
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(message(str(path), "the header of this cache is missing or damaged"))


def _mapped(path: Path, size: int, checksum: int) -> mmap.mmap:
    """Memory-map a file after verifying its size and checksum."""
    actual = 0
    try:
        with open(path, "rb", opener=open_regular) as file:
            while block := file.read(1 << 20):
                actual = zlib.crc32(block, actual)
            if file.tell() == size and actual == checksum:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise DataError(message(str(path), "this file of the cache is missing")) from None
    except OSError as error:
        raise DataError(
            message(str(path), f"this file of the cache cannot be read: {error.strerror}")
        ) from None
    raise DataError(message(str(path), "this file of the cache is damaged"))
