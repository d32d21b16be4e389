"""The cache of encoded sentence pairs: files of token ids, which are written once and memory-mapped later.

A cache is a folder. Its name is its key: a hash of the text, the tokenizers and the settings. If one of them
changes, another cache is created. encoded_files.py describes the files of a cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy

from regard.data.encoded_files import EncodedChunk, open_stored, store
from regard.data.encoded_pairs import EncodedPairs
from regard.data.progress_bar import advancing
from regard.data.tokenizers import Tokenizer
from regard.data.tokenizers.normalize import sides
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.files.atomic_io import flush_folder
from regard.files.user_cache import LEFT_OVER

__all__ = ["EncodedPairs", "encode_pairs"]

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
        hint = (
            "use a writable folder with enough free space, 2 bytes per token and 24 bytes per pair: set the "
            "environment variable REGARD_CACHE"
        )
        name = shown(error.filename or folder)
        raise DataError(
            message(name, f"the cache cannot be used: {error.strerror or error}", hint=hint)
        ) from None


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
