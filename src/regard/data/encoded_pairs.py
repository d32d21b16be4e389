"""Sentence pairs as token ids in flat arrays: in memory, or in a cache on disk that is memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

import numpy
import torch
from numpy.typing import NDArray

from regard.data.progress_bar import advancing
from regard.data.tokenizers.tokenizer import Tokenizer, sides
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.atomic_io import beside, flush_folder, remove, write
from regard.files.tensor_file import read_tensors, tensor_blocks
from regard.files.user_cache import LEFT_OVER, cache_error

SIDES = ("source", "target")


class Side(NamedTuple):
    """The sentences of one side of a dataset (source or target), as a flat array of token ids.

    tokens: the token ids of all sentences, concatenated.
    offsets: (N + 1,), index in `tokens` at which each sentence starts, then the end of the last sentence.
    """

    tokens: NDArray[Any]
    offsets: NDArray[numpy.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Side:
        """Create a Side from lists of token ids, one list for each sentence."""
        offsets = numpy.cumsum([0, *map(len, rows)], dtype=numpy.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(numpy.fromiter(flat, numpy.uint32, int(offsets[-1])), offsets)

    @classmethod
    def empty(cls, count: int) -> Side:
        """Create a Side of `count` sentences without tokens."""
        return cls(numpy.zeros(0, numpy.uint32), numpy.zeros(count + 1, numpy.int64))

    def at(self, index: int) -> NDArray[Any]:
        """Return the token ids of the sentence at this index."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def gather(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[numpy.int64]]:
        """Return the token ids of several sentences, concatenated, and the number of tokens of each sentence.

        rows: the indices of the sentences.
        """
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        shifts = begins - (numpy.cumsum(lengths) - lengths)
        return self.tokens[numpy.arange(int(lengths.sum())) + numpy.repeat(shifts, lengths)], lengths

    def lengths(self) -> NDArray[numpy.int32]:
        """Return the number of tokens of each sentence, (N,)."""
        return numpy.diff(self.offsets).astype(numpy.int32)


class EncodedPairs:
    """Sentence pairs as token ids, without BOS and EOS, in flat arrays.

    sources, targets: the tokens of the source sentences and of the target sentences, each as a Side (a flat
        array).
    numbers: (N,), position of each pair in the original data, from 0. Skipped pairs are not included.
    skipped: number of pairs that were dropped because they were too long.
    truncated: number of pairs that were cut because they were too long.

    >>> data = EncodedPairs.in_memory([[7, 8], [9]], [[5], [6, 4, 4]])
    >>> len(data), data.source(0), data.target_lengths
    (2, array([7, 8], dtype=uint32), array([1, 3], dtype=int32))
    """

    unit = "pairs"

    def __init__(
        self,
        sources: Side,
        targets: Side,
        numbers: NDArray[numpy.int64],
        skipped: int = 0,
        truncated: int = 0,
    ):
        self.sources, self.targets, self.numbers = sources, targets, numbers
        self.skipped, self.truncated = skipped, truncated

    @classmethod
    def in_memory(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> EncodedPairs:
        """Create encoded pairs from lists of token ids, one list for each sentence, without a file."""
        if len(sources) != len(targets):
            problem = f"there are {len(sources)} sources and {len(targets)} targets"
            expected = "one target for each source"
            raise ArgumentError(message("EncodedPairs.in_memory()", problem, expected=expected))
        return cls(Side.of(sources), Side.of(targets), numpy.arange(len(sources)))

    def __len__(self) -> int:
        return len(self.numbers)

    def source(self, index: int) -> NDArray[Any]:
        """Return the token ids of the source sentence at this index, as a view of the array of all tokens.

        The view is read-only if the pairs are memory-mapped.
        """
        return self.sources.at(self._checked(index))

    def target(self, index: int) -> NDArray[Any]:
        """Return the token ids of the target sentence at this index, as a view of the array of all tokens.

        The view is read-only if the pairs are memory-mapped.
        """
        return self.targets.at(self._checked(index))

    @cached_property
    def source_lengths(self) -> NDArray[numpy.int32]:
        """Number of tokens of each source, (N,)."""
        return self.sources.lengths()

    @cached_property
    def target_lengths(self) -> NDArray[numpy.int32]:
        """Number of tokens of each target, (N,)."""
        return self.targets.lengths()

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"pair {index} is out of range for {len(self)} pairs")
        return index % len(self)

    def __repr__(self) -> str:
        counts = f"{len(self)} {self.unit}, {self.skipped} skipped, {self.truncated} truncated"
        return f"{type(self).__name__}({counts})"


VERSION = 2
"""Version of the file format and of the cleaning of the text by clean(). Increase it if one of them changes.

The version is part of the key of a cache, so that a cache of another version is never opened."""

CHUNK = 20_000
"""Number of pairs that are encoded at a time, to limit the memory use."""

OVER = ("skip", "truncate")


def check_limit(call: str, longest: int | None, over: str) -> None:
    """Raise UnknownName or ArgumentError if the arguments of limited() are invalid."""
    if over not in OVER:
        raise UnknownName("value of over", over, OVER)
    if longest is not None and longest < 1:
        expected = "1 or more, or None for no limit"
        raise ArgumentError(message(call, f"longest is {longest}", expected=expected))


def limited(
    sides: Sequence[Sequence[Sequence[int]]], longest: int | None, over: str
) -> tuple[list[Side], NDArray[numpy.int64], int]:
    """Drop ("skip") or cut ("truncate") the samples with over `longest` tokens on one of their sides.

    Returns the sides of the samples that are kept, their indices, and the number of too long samples.
    """
    sizes = numpy.array([list(map(len, rows)) for rows in sides])
    long = sizes.max(0) > (longest or numpy.inf)
    kept = numpy.flatnonzero(~long) if over == "skip" else numpy.arange(len(long))
    short = not long.any()
    cut = [Side.of(rows if short else [rows[at][:longest] for at in kept.tolist()]) for rows in sides]
    return cut, kept, int(long.sum())


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

    A cache is a file of tensors with the token ids, which is memory-mapped. Its name is its key: a hash of
    the text, the tokenizers and the settings. If one of them changes, another cache is created.

    pairs: Pairs, or a list of (source, target).
    source_tokenizer, target_tokenizer: the tokenizers of the source sentences and of the target sentences.
    folder: the folder of all caches; it is created if it does not exist.
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
    check_limit("encode_pairs()", longest, over)
    if not hasattr(pairs, "__len__"):
        problem = f"pairs is of type {type(pairs).__name__}, which has no length"
        expected = "Pairs, or a list of (source, target)"
        raise ArgumentError(message("encode_pairs()", problem, expected=expected, hint="use list(pairs)"))
    if not len(pairs):
        raise DataError(message("encode_pairs()", "there are no pairs to encode"))
    tokenizers = (source_tokenizer, target_tokenizer)
    content = getattr(pairs, "fingerprint", None) or _fingerprint(pairs)
    parts = [VERSION, content, *(each.fingerprint for each in tokenizers), longest, over]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    folder = Path(folder)
    place = folder / f"{key}.safetensors"
    try:
        if os.path.lexists(place):
            try:
                return _opened(place)
            except DataError as error:
                warnings.warn(f"{error}\nthe cache is created again", stacklevel=2)
                remove(place)
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".*.part"):  # of processes that were killed
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > LEFT_OVER:
                    remove(path)
        part = beside(place, "part")
        try:
            _store(part, pairs, tokenizers, longest, over)
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)
        flush_folder(folder)
        return _opened(place)
    except OSError as error:
        raise cache_error(error, folder) from None


def _opened(path: Path) -> EncodedPairs:
    """Open a cache as a memory map. Raises DataError if the file is damaged."""
    arrays = {name: tensor.numpy() for name, tensor in read_tensors(path).items()}
    try:
        skipped, truncated, checksum = arrays.pop("counts").tolist()
        sides = [Side(arrays[name], arrays[f"{name} offsets"]) for name in SIDES]
        numbers = arrays["numbers"]
    except (KeyError, ValueError) as error:
        raise DataError(message(str(path), f"the cache is damaged ({error})")) from None
    if checksum != _checksum(arrays):
        raise DataError(message(str(path), "the cache is damaged"))
    for array in arrays.values():
        array.flags.writeable = False
    return EncodedPairs(sides[0], sides[1], numbers, skipped, truncated)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> int:
    checksum = 0
    for name in sorted(arrays):
        checksum = zlib.crc32(arrays[name].data, checksum)
    return checksum


def _store(
    path: Path, pairs: SizedPairs, tokenizers: tuple[Tokenizer, Tokenizer], longest: int | None, over: str
) -> None:
    """Encode sentence pairs and write them to a new file.

    The tokens are first written to two temporary files without names, because their number is not known.
    Raises DataError if all pairs are skipped.
    """
    dtypes = [numpy.dtype(numpy.uint16 if each.size <= 2**16 else numpy.uint32) for each in tokenizers]
    lengths: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    numbers, read, over_long, iterator = list[NDArray[numpy.int64]](), 0, 0, iter(pairs)
    with (
        TemporaryFile(dir=path.parent) as source,
        TemporaryFile(dir=path.parent) as target,
        advancing("encoding pairs", len(pairs)) as reached,
    ):
        files: tuple[IO[bytes], IO[bytes]] = (source, target)
        while chunk := list(itertools.islice(iterator, CHUNK)):
            texts = zip(*map(sides, chunk), strict=True)
            rows = [each.encode_lines(text) for each, text in zip(tokenizers, texts, strict=True)]
            cut, kept, long = limited(rows, longest, over)
            for side, file, dtype, counts in zip(cut, files, dtypes, lengths, strict=True):
                file.write(side.tokens.astype(dtype).tobytes())
                counts.append(side.lengths())
            numbers.append(kept + read)
            read, over_long = read + len(chunk), over_long + long
            reached(read)
        if read != len(pairs):
            problem, hint = (
                f"expected {len(pairs)} pairs, but read {read}",
                "do not change the files during encoding",
            )
            raise DataError(message("encode_pairs()", problem, hint=hint))
        if over == "skip" and over_long == read:
            problem = f"all {read} pairs have a side with over {longest} tokens"
            raise DataError(
                message("encode_pairs()", problem, hint="increase longest, or use over='truncate'")
            )
        arrays: dict[str, NDArray[Any]] = {"numbers": numpy.concatenate(numbers)}
        for name, file, dtype, counts in zip(SIDES, files, dtypes, lengths, strict=True):
            offsets = numpy.cumsum(numpy.concatenate([[0], *counts]), dtype=numpy.int64)
            file.flush()
            tokens = numpy.memmap(file, dtype) if offsets[-1] else numpy.zeros(0, dtype)
            arrays |= {name: tokens, f"{name} offsets": offsets}
        dropped = (over_long, 0) if over == "skip" else (0, over_long)
        arrays["counts"] = numpy.array([*dropped, _checksum(arrays)])
        write(path, tensor_blocks({name: torch.from_numpy(array) for name, array in arrays.items()}))


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
