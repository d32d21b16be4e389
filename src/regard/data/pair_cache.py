"""The cache of encoded sentence pairs: files of token ids, which are written once and memory-mapped later.

A cache is a folder. Its name is its key: a hash of the text, the tokenizers and the settings. If one of them
changes, another cache is created. A cache holds flat files that are verified when they are opened:

    source      all source tokens, then int64 offsets: the start of each sentence and the end of the last
    target      all target tokens, then their offsets
    numbers     the position of each kept pair in the original data, int64
    header.json sizes, dtypes and checksums of the files
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import mmap
import os
import secrets
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy
from numpy.typing import NDArray

from regard.data.encoded_pairs import EncodedPairs, Reader, Side
from regard.data.progress_bar import advancing
from regard.data.tokenizers import Tokenizer
from regard.data.tokenizers.normalize import sides
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.atomic_io import flush_folder, write_all
from regard.files.untrusted import open_regular, parse_json, read_limited
from regard.files.user_cache import LEFT_OVER, cache_error

__all__ = ["EncodedChunk", "EncodedPairs", "encode_pairs", "open_stored", "store"]

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
        self.file = path.open("xb", buffering=0)
        self.checksum = 0

    def put(self, content: bytes) -> None:
        """Append bytes to the file, and update its checksum."""
        write_all(self.file.fileno(), content)
        self.checksum = zlib.crc32(content, self.checksum)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.file:
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


VERSION = 1
"""Version of the file format and of the cleaning of the text by clean(). Increase it if one of them changes.

The version is part of the key of a cache, so that a cache of another version is never opened."""

CHUNK = 20_000
"""Number of pairs that are encoded at a time, to limit the memory use."""

OVER = ("skip", "truncate")


class SizedPairs(Protocol):
    """A collection of (source, target) pairs that has a length and can be iterated over repeatedly."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


def encode_pairs(
    pairs: SizedPairs,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    folder: str | Path,
    *,
    longest: int | None = 256,
    over: str = "skip",
) -> EncodedPairs:
    """Encode sentence pairs into a cache in `folder`, or open the cache if it already exists.

    A cache is a folder of files with the token ids, which are memory-mapped.

    pairs: Pairs, or a list of (source, target).
    source_tokenizer, target_tokenizer: the tokenizers of the source sentences and of the target sentences.
    folder: the parent folder of all caches; it is created if it does not exist.
    longest: maximum number of tokens of the source and of the target of a pair, without BOS and EOS; None for
        no limit.
    over: what to do with longer pairs: "skip" drops them, "truncate" cuts both sides to `longest` tokens. The
        result has the number of dropped pairs in `skipped`, and the number of cut pairs in `truncated`.

    If the cache is damaged, it is created again, with a warning. The text is not held in memory, only a few
    numbers for each pair.

    >>> import tempfile
    >>> from regard.data.tokenizers import train_tokenizers
    >>> pairs = [("ein Haus", "a house"), ("ein Hut", "a hat"), ("ein Haus ein Haus", "a house a house")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = encode_pairs(pairs, *train_tokenizers(pairs, "word"), folder, longest=3)
    >>> data, data.source(1), data.target(1)
    (EncodedPairs(2 pairs, 1 skipped, 0 truncated), array([4, 6], dtype=uint16), array([4, 6], dtype=uint16))
    """
    _check(pairs, longest, over)
    tokenizers = (source_tokenizer, target_tokenizer)
    content = getattr(pairs, "fingerprint", None) or _fingerprint(pairs)
    parts = [VERSION, content, *(each.fingerprint for each in tokenizers), longest, over]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    folder = Path(folder)
    place = folder / key
    try:
        if os.path.lexists(place):
            try:
                return open_stored(place, key)
            except DataError as error:
                warnings.warn(f"{error}\nthe cache is created again", stacklevel=2)
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        part = folder / f".{key}.{secrets.token_hex(4)}.part"
        part.mkdir()
        try:
            with advancing("encoding pairs", len(pairs)) as reached:
                chunks = _encoded(pairs, tokenizers, longest, over, reached)
                store(part, key, chunks, (source_tokenizer.size, target_tokenizer.size))
            _publish(part, place, key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return open_stored(place, key)
    except OSError as error:
        raise cache_error(error, folder) from None


def _check(pairs: SizedPairs, longest: int | None, over: str) -> None:
    if over not in OVER:
        raise UnknownName("value of over", over, OVER)
    if longest is not None and longest < 1:
        expected = "1 or more, or None for no limit"
        raise ArgumentError(message("encode_pairs()", f"longest is {longest}", expected=expected))
    if not hasattr(pairs, "__len__"):
        problem = f"pairs is of type {type(pairs).__name__}, which has no length"
        expected = "Pairs, or a list of (source, target)"
        raise ArgumentError(message("encode_pairs()", problem, expected=expected, hint="use list(pairs)"))
    if not len(pairs):
        raise DataError(message("encode_pairs()", "there are no pairs to encode"))


def _fingerprint(pairs: Iterable[Any]) -> str:
    """Return a hash of the text of all pairs, for collections that have no attribute `fingerprint`."""
    digest = hashlib.sha256()
    for number, pair in enumerate(pairs):
        for text in sides(pair):
            if not isinstance(text, str):
                problem = f"pair {number} has a side of type {type(text).__name__}"
                raise ArgumentError(message("encode_pairs()", problem, expected="two strings in each pair"))
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d " % len(encoded) + encoded)
    return digest.hexdigest()


def _encoded(
    pairs: SizedPairs,
    tokenizers: tuple[Tokenizer, Tokenizer],
    longest: int | None,
    over: str,
    reached: Callable[[int], None],
) -> Iterator[EncodedChunk]:
    """Encode sentence pairs and yield them in chunks.

    tokenizers: the tokenizer of the source sentences, and the tokenizer of the target sentences.
    longest, over: the maximum number of tokens, and what to do with longer pairs; see encode_pairs().
    reached: function that is called with the number of pairs encoded so far.

    Raises DataError at the end if all pairs were skipped.
    """
    read = skipped = 0
    for chunk in _chunks(pairs):
        sources, targets = zip(*map(sides, chunk), strict=True)
        rows = tokenizers[0].encode_lines(sources), tokenizers[1].encode_lines(targets)
        numbers = numpy.arange(read, read + len(chunk))
        over_long = [
            place
            for place, lengths in enumerate(zip(map(len, rows[0]), map(len, rows[1]), strict=True))
            if longest is not None and max(lengths) > longest
        ]
        if over == "truncate":
            for place in over_long:
                rows[0][place], rows[1][place] = rows[0][place][:longest], rows[1][place][:longest]
            yield EncodedChunk(rows, numbers, 0, len(over_long))
        else:
            for place in reversed(over_long):
                del rows[0][place], rows[1][place]
            yield EncodedChunk(rows, numpy.delete(numbers, over_long), len(over_long), 0)
            skipped += len(over_long)
        read += len(chunk)
        reached(read)
    if read != len(pairs):
        problem = f"expected {len(pairs)} pairs, but read {read}"
        raise DataError(message("encode_pairs()", problem, hint="do not change the files during encoding"))
    if skipped == read:
        problem = f"all {read} pairs have a side with over {longest} tokens"
        raise DataError(message("encode_pairs()", problem, hint="increase longest, or use over='truncate'"))


def _chunks(pairs: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(pairs)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk


def _publish(part: Path, place: Path, key: str) -> None:
    """Move a new cache, which is complete, from the folder `part` to the folder `place`.

    key: the key of the cache, a hash of the text, the tokenizers and the settings.

    If `place` already exists and is a valid cache with this key, another process wrote it: nothing is moved.
    If `place` is a damaged cache, it is replaced.
    """
    if os.path.lexists(place):
        try:
            open_stored(place, key)
            return
        except DataError:
            damaged = part.with_suffix(".damaged.part")
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, damaged)
            _remove(damaged)
    try:
        os.rename(part, place)
    except OSError:
        if not place.exists():
            raise
    flush_folder(place.parent)


def _remove(path: Path) -> None:
    """Delete a folder, a file, or a symbolic link (but not its target)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _sweep(folder: Path) -> None:
    """Delete unfinished caches in `folder` that were last changed more than LEFT_OVER seconds ago."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > LEFT_OVER:
                _remove(path)
