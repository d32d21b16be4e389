"""Encode samples as flat arrays of token ids, and group them into batches with a limited number of tokens.

Sentence pairs are encoded into a cache on disk, which is memory-mapped. A batch has samples of similar
length: pairs (Batches), labelled texts (LabelledBatches) or captions of images (CaptionBatches).

For the same data and settings, the order of the batches depends only on (seed, epoch)."""

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
from typing import IO, TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch, ImageBatch, LabelledBatch
from regard.data.line_io import advancing
from regard.data.tokenizers.tokenizer import Tokenizer, sides
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.atomic_io import beside, flush_folder, remove, write
from regard.files.tensor_file import read_tensors, tensor_blocks
from regard.files.user_cache import LEFT_OVER, cache_error

if TYPE_CHECKING:  # batches of text need none of them
    from regard.data.images.image_file import Augmentation, Pixels
    from regard.data.labelled_text import LabelledTexts, Labels

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


WINDOW = 2**18
"""Maximum number of samples (sentence pairs) that are sorted by length together.

The samples of an epoch are shuffled and divided into windows of about this size. Within each window, they are
sorted by length. So the samples of a batch have similar lengths."""


class Plan(NamedTuple):
    """Which samples (sentence pairs or texts) each batch of an epoch contains.

    order: (N,), the indices of the samples in the data, in the order of the epoch.
    begins, ends: (batches,). Batch i contains the samples order[begins[i]:ends[i]].
    """

    order: NDArray[numpy.int32]
    begins: NDArray[numpy.int64]
    ends: NDArray[numpy.int64]

    def rows(self, batch: int) -> NDArray[numpy.int32]:
        """Return the samples in batch number `batch`, as indices into the data."""
        return self.order[self.begins[batch] : self.ends[batch]]


AnyBatch = TypeVar("AnyBatch")


class SimilarLengths(Generic[AnyBatch]):
    """Base class of batches of samples of similar lengths. A subclass builds a batch from its samples.

    See Batches for the arguments.
    """

    def __init__(
        self,
        data: EncodedPairs,
        tokens: int | None = 4096,
        *,
        sentences: int | None = None,
        longest: int | None = None,
        rounded: Sequence[int] = (),
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        check_integers("Batches()", 1, tokens=tokens, sentences=sentences, longest=longest)
        check_integers("Batches()", 0, seed=seed)
        check_rank("Batches()", rank, world)
        if tokens is None and sentences is None:
            raise ArgumentError(message("Batches()", "batch size is not set", expected="tokens or sentences"))
        self.data, self.shuffle, self.seed = data, shuffle, seed
        self._rounded = numpy.sort(numpy.array(rounded, numpy.int32))
        self.rank, self.world = rank, world
        self._tokens, self._sentences = tokens and tokens * world, sentences and sentences * world
        # The longer side of a pair decides how many pairs fit into the token budget.
        self._lengths = numpy.maximum(data.source_lengths, data.target_lengths)
        fits = numpy.ones(len(data), bool) if longest is None else self._lengths <= longest
        self._kept = numpy.flatnonzero(fits).astype(numpy.int32)
        self.left_out = len(data) - len(self._kept)
        if len(self._kept) < world:
            problem = f"{len(self._kept)} of {len(data)} examples are short enough, for {world} processes"
            hint = "increase longest" if self.left_out else "use more data"
            raise DataError(
                message("Batches()", problem, expected="at least one example per process", hint=hint)
            )
        self._planned: tuple[int, Plan] | None = None

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> AnyBatch:
        """Return a batch.

        rows: (B,), the indices of its samples in `data`.
        data: the encoded pairs.
        """
        raise NotImplementedError

    def epoch(self, epoch: int, start: int = 0, data: EncodedPairs | None = None) -> Iterator[AnyBatch]:
        """Iterate over the batches of an epoch from batch `start` on; earlier batches are not computed.

        data: the same pairs with other tokens, e.g. sampled subwords. They are not sorted by length again.
        """
        plan = self.plan(epoch)
        check_start("Batches.epoch()", start, len(plan.begins))
        return self._batches(plan, start, self.data if data is None else data)

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self.plan(epoch).begins)

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens, including padding."""
        plan = self.plan(epoch)
        sizes = [
            (end - begin) * int(self._lengths[plan.order[begin:end]].max() + 1)
            for begin, end in zip(plan.begins.tolist(), plan.ends.tolist(), strict=True)
        ]
        return sizes.index(max(sizes))

    def plan(self, epoch: int) -> Plan:
        """Return which samples each batch of an epoch contains.

        The plan of the last requested epoch is cached.
        """
        if epoch < 0:
            raise ArgumentError(message("Batches.plan()", f"epoch is {epoch}", expected="0 or more"))
        planned = self._planned  # another thread may replace it
        if planned is None or planned[0] != epoch:
            planned = self._planned = None  # free the memory of the old plan before the new one is computed
            planned = self._planned = epoch, self._plan(epoch)
        return planned[1]

    def _plan(self, epoch: int) -> Plan:
        # Shuffle with raw random bits, which are the same in every numpy version; the result of numpy's
        # permutation() may change between versions.
        bits = numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch)))
        order = self._kept[_shuffled(len(self._kept), bits)] if self.shuffle else self._kept.copy()
        # All windows get about the same size, because a small window would have too few samples of similar
        # length.
        parts = -(-len(order) // WINDOW) if self.shuffle else 1
        bounds = [len(order) * part // parts for part in range(parts + 1)]
        cuts = [0]
        for begin, end in itertools.pairwise(bounds):
            part = order[begin:end]
            # By length, then by source length. The sort is stable: samples of equal length keep their order.
            key = self._lengths[part].astype(numpy.int64) << 32 | self.data.source_lengths[part]
            part[:] = part[numpy.argsort(key, kind="stable")]
            cuts += [begin + cut for cut in self._cuts(self._costs(part))]
        begins, ends = numpy.array(cuts[:-1], numpy.int64), numpy.array(cuts[1:], numpy.int64)
        if self.shuffle:
            turn = _shuffled(len(begins), bits)
            begins, ends = begins[turn], ends[turn]
        return Plan(order, begins, ends)

    def _costs(self, rows: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
        """Return the cost of each sample: the padded length of a batch in which this sample is the longest.

        rows: the indices of the samples.
        """
        costs = self._lengths[rows] + 1
        places = numpy.searchsorted(self._rounded, costs)
        within = places < len(self._rounded)
        costs[within] = self._rounded[places[within]]
        return costs

    def _cuts(self, costs: NDArray[numpy.int32]) -> list[int]:
        """Divide samples into batches. Return the end of each batch: the index after its last sample.

        costs: the cost of each sample, see _costs(), in ascending order.
        """
        ends = [0]
        while ends[-1] < len(costs):
            begin = ends[-1]
            rows = min(self._sentences or len(costs), len(costs) - begin)
            if self._tokens is not None:
                ahead = costs[begin : begin + min(rows, self._tokens // int(costs[begin]))]
                fits = ahead * numpy.arange(1, len(ahead) + 1) <= self._tokens
                rows = int(numpy.count_nonzero(fits))  # 0 if the first sample alone exceeds the token budget
            # Every process needs at least one row: a process without a batch would make the others wait
            # forever.
            ends.append(min(begin + max(rows, self.world), len(costs)))
        if len(ends) > 2 and ends[-1] - ends[-2] < self.world:
            del ends[-2]
        return ends[1:]

    def _batches(self, plan: Plan, start: int, data: EncodedPairs) -> Iterator[AnyBatch]:
        for number in range(start, len(plan.begins)):
            yield self.build(plan.rows(number)[self.rank :: self.world], data)


class Batches(SimilarLengths[Batch]):
    """Batches of sentence pairs, with about the same number of tokens in each batch.

    The sentences of a batch have similar lengths.

    data: the encoded sentence pairs.
    tokens: token budget, the maximum number of tokens in the source tensor or the target tensor of a batch,
        per process. It counts padding: the number of rows times the length of the longest sentence,
        including EOS. A sentence longer than the budget is a batch with one row. None: no budget.
    sentences: maximum number of rows in a batch, per process; required if `tokens` is None.
    longest: maximum number of tokens of source and target, without BOS and EOS. Longer pairs are skipped.
    rounded: a list of lengths, including EOS. Set it if you pad each batch to the next larger length in this
        list. The token budget then applies to the padded batches.
    shuffle: if False, every epoch has the same batches, the shortest first.
    seed: random seed of the order.
    rank, world: index of this process, and number of processes.

    The order of an epoch depends only on the data, these arguments and (seed, epoch). Each pair occurs once
    in an epoch. With several processes, each batch is `world` times as large and is divided between the
    processes: a process takes every world-th row, starting at row `rank`. Each process needs at least one
    row. So a batch with fewer rows than processes is added to the previous batch, which may then exceed the
    budget by one row per process.

    To sample new subwords in each epoch (subword regularization), encode the sentences of a batch again. For
    each `number` in `batch.index`, let `line` be the sentence with this index, and call
    tokenizer.encode(line, sample=0.1, generator=random.Random(f"{seed} {epoch} {number}")).

    In the example, no sentence has more than 3 tokens with EOS, so two rows fit into a budget of 6 tokens.

    >>> from regard.data.batching import EncodedPairs
    >>> data = EncodedPairs.in_memory([[7, 8], [9], [5], [6, 6]], [[5], [6, 4], [8], [8]])
    >>> [batch.index.tolist() for batch in Batches(data, tokens=6).epoch(0)]
    [[2, 1], [3, 0]]
    """

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> Batch:
        source, source_lengths = padded_rows(data.sources, rows, begin=False)
        target, target_lengths = padded_rows(data.targets, rows, begin=True)
        return Batch(source, source_lengths, target, target_lengths, torch.from_numpy(data.numbers[rows]))


def check_integers(call: str, least: int, **arguments: int | None) -> None:
    """Raise ArgumentError if an argument is neither None nor an integer of at least `least`."""
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int | numpy.integer) or value < least):
            expected = f"an integer, {least} or more"
            raise ArgumentError(message(call, f"{name} is {value!r}", expected=expected))


def check_rank(call: str, rank: int, world: int) -> None:
    """Raise ArgumentError if `rank` is not the index of one of `world` processes."""
    check_integers(call, 1, world=world)
    if not isinstance(rank, int) or not 0 <= rank < world:
        raise ArgumentError(message(call, f"rank is {rank!r}", expected=f"a rank from 0 to {world - 1}"))


def check_start(call: str, start: int, batches: int) -> None:
    """Raise ArgumentError if an epoch of this number of batches cannot start at batch `start`."""
    if not 0 <= start <= batches:
        expected = f"0 to {batches}, the number of batches"
        raise ArgumentError(message(call, f"start is {start}", expected=expected))


def _shuffled(count: int, bits: numpy.random.PCG64) -> NDArray[numpy.int64]:
    """Return the numbers 0 to count - 1 in random order."""
    return numpy.argsort(bits.random_raw(count), kind="stable")


def padded_rows(side: Side, rows: NDArray[numpy.int32], begin: bool) -> tuple[Tensor, Tensor]:
    """Return B sentences as a padded tensor of token ids, and their lengths, (B,).

    side: all sentences.
    rows: the indices of the B sentences.

    EOS is added to each sentence, and BOS too if `begin` is True. The lengths include EOS but not BOS.
    """
    tokens, lengths = side.gather(rows)
    places = numpy.arange(int(lengths.max()))
    padded = numpy.full((len(rows), begin + len(places) + 1), PAD, numpy.int64)
    padded[:, begin:-1][places < lengths[:, None]] = tokens
    padded[numpy.arange(len(rows)), begin + lengths] = EOS
    if begin:
        padded[:, 0] = BOS
    return torch.from_numpy(padded), torch.from_numpy(lengths + 1)


class EncodedTexts(EncodedPairs):
    """Labelled texts as token ids, without EOS, in flat arrays.

    firsts: the tokens of the texts, or of the first text of each pair, as a Side (a flat array).
    seconds: the tokens of the second text of each pair, as a Side; None if the data are not pairs.
    labels: (N,), class indices.
    numbers: (N,), index of each text in the LabelledTexts from which it was encoded. Skipped texts are not
        included.
    skipped: number of texts (or pairs) that were dropped because they were too long.
    truncated: number of texts (or pairs) that were cut because they were too long.

    >>> data = EncodedTexts.in_memory([[7, 8], [9]], labels=[1, 0])
    >>> len(data), data.labels, data.firsts.at(0)
    (2, array([1, 0]), array([7, 8], dtype=uint32))
    """

    def __init__(
        self,
        firsts: Side,
        seconds: Side | None,
        labels: NDArray[numpy.int64],
        numbers: NDArray[numpy.int64],
        skipped: int = 0,
        truncated: int = 0,
    ):
        super().__init__(firsts, seconds or Side.empty(len(labels)), numbers, skipped, truncated)
        self.firsts, self.seconds, self.labels = firsts, seconds, labels
        self.unit = "pairs" if self.pairs else "texts"

    @classmethod
    def in_memory(  # type: ignore[override]
        cls,
        firsts: Sequence[Sequence[int]],
        labels: Sequence[int],
        seconds: Sequence[Sequence[int]] | None = None,
    ) -> EncodedTexts:
        """Create encoded texts from lists of token ids.

        firsts: the token ids of each text, or of the first text of each pair.
        labels: the class index of each text (or pair).
        seconds: the token ids of the second text of each pair; None if the data are not pairs.
        """
        for name, values in (("labels", labels), ("seconds", seconds)):
            if values is not None and len(values) != len(firsts):
                problem = f"there are {len(firsts)} firsts and {len(values)} {name}"
                raise ArgumentError(message("EncodedTexts.in_memory()", problem, expected="the same number"))
        return cls(
            Side.of(firsts),
            None if seconds is None else Side.of(seconds),
            numpy.array(labels, numpy.int64),
            numpy.arange(len(firsts)),
        )

    @property
    def pairs(self) -> bool:
        """Whether each example is a pair of texts, not a single text."""
        return self.seconds is not None


def encode_texts(
    texts: LabelledTexts,
    labels: Labels,
    tokenizer: Tokenizer,
    *,
    longest: int | None = 256,
    over: str = "truncate",
) -> EncodedTexts:
    """Encode labelled texts. Both texts of a pair are encoded with the same tokenizer.

    labels: the classes of the training data. A text with another label raises DataError, which names its file
        and line.
    longest: maximum number of tokens of a text, without EOS, or None for no limit.
    over: what to do with longer texts: "truncate" cuts them, "skip" drops them. The result has the number of
        cut texts in `truncated`, and the number of dropped texts in `skipped`.

    >>> from regard.data.labelled_text import labelled_from_lists
    >>> from regard.data.tokenizers import train_tokenizer
    >>> texts = labelled_from_lists(["good film", "bad film"], ["pos", "neg"])
    >>> tokenizer = train_tokenizer("word", texts.texts)
    >>> data = encode_texts(texts, texts.label_set(), tokenizer, longest=1)
    >>> data, data.labels
    (EncodedTexts(2 texts, 0 skipped, 2 truncated), array([1, 0]))
    """
    call = "encode_texts()"
    check_limit(call, longest, over)
    indices = texts.label_indices(labels)
    sides = [tokenizer.encode_lines(side) for side in (texts.firsts, texts.seconds) if side is not None]
    cut, kept, long = limited(sides, longest, over)
    if not len(kept):
        problem = f"all {len(texts)} texts have over {longest} tokens"
        raise DataError(message(call, problem, hint="increase longest, or use over='truncate'"))
    seconds = cut[1] if len(cut) > 1 else None
    counts = (long, 0) if over == "skip" else (0, long)
    return EncodedTexts(cut[0], seconds, indices[kept], kept.astype(numpy.int64), *counts)


class LabelledBatches(SimilarLengths[LabelledBatch]):
    """Batches of labelled texts with about the same number of tokens each.

    The texts of a batch have similar lengths.

    data: the encoded texts.
    tokens: token budget, the maximum number of tokens in a batch, including padding, per process.
    options: the other arguments of Batches: sentences, longest, rounded, shuffle, seed, rank and world.

    The order depends only on the data, these arguments and (seed, epoch). The field `index` of a batch has
    the index of each text in the LabelledTexts from which `data` was encoded.

    >>> data = EncodedTexts.in_memory([[7, 8], [9], [5], [6, 6]], labels=[1, 0, 0, 1])
    >>> [(batch.index.tolist(), batch.labels.tolist()) for batch in LabelledBatches(data, tokens=6).epoch(0)]
    [([2, 1], [0, 0]), ([3, 0], [1, 1])]
    """

    def __init__(self, data: EncodedTexts, tokens: int = 4096, **options: Any):
        self.texts = data
        super().__init__(data, tokens, **options)

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> LabelledBatch:
        first = padded_rows(data.sources, rows, begin=False)
        second = padded_rows(data.targets, rows, begin=False) if self.texts.pairs else (None, None)
        labels, index = self.texts.labels[rows], data.numbers[rows]
        numbers = torch.from_numpy(labels), torch.from_numpy(index)
        return LabelledBatch(first[0], first[1], numbers[0], numbers[1], second[0], second[1])


class EncodedCaptions(EncodedPairs):
    """The captions of all images as token ids. Each caption is one training example.

    captions: the token ids of all N captions.
    image_rows: (N,), the index of the image of each caption.
    truncated: number of captions that were truncated because they had too many tokens.

    >>> captions = EncodedCaptions(Side.of([[7, 8], [9], [5]]), numpy.array([0, 0, 1]))
    >>> len(captions)
    3
    """

    def __init__(self, captions: Side, image_rows: NDArray[numpy.int64], truncated: int = 0):
        count = len(image_rows)
        super().__init__(Side.empty(count), captions, numpy.arange(count), truncated=truncated)
        self.captions, self.image_rows = captions, image_rows


def encode_captions(
    captions: Sequence[Sequence[str]], tokenizer: Tokenizer, *, longest: int
) -> EncodedCaptions:
    """Encode the captions of images as token ids.

    captions: the captions of each image.
    tokenizer: the tokenizer.
    longest: maximum number of tokens of a caption; longer captions are truncated.
    """
    texts = [caption for several in captions for caption in several]
    rows = [row for row, several in enumerate(captions) for _ in several]
    (side,), _, truncated = limited([tokenizer.encode_lines(texts)], longest, "truncate")
    return EncodedCaptions(side, numpy.array(rows, numpy.int64), truncated)


class CaptionBatches(Batches):
    """Batches of images with captions; the captions of a batch have similar lengths.

    data: the captions.
    pixels: the images.
    size: width and height in pixels of the images of a batch. Larger images are cropped: by `augmentation`,
        or at the centre if `augmentation` is None.
    augmentation: random crops and flips, for training; different for each caption of an image.
    images: whether batches contain images. If False, ImageBatch.source has the index of each image, (B,), and
        the caller replaces the indices by stored images or feature vectors. If `augmentation` is also set,
        ImageBatch.source is (B, 4): the index of each image, then the result of augmentation.draw().
    workers: number of threads that decode the images of a batch if they are not in memory.
    tokens: maximum number of tokens of a batch, see Batches.
    options: other keyword arguments of Batches: sentences, rounded, shuffle, seed, rank, world and so on.

    The order of the captions and the augmentation depend only on the data, these arguments, and the epoch.

    >>> captions = EncodedCaptions(Side.of([[7, 8], [9], [5]]), numpy.array([0, 0, 1]))
    >>> from regard.data.images.image_file import Pixels
    >>> pixels = Pixels(4, torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    >>> batches = CaptionBatches(captions, pixels, size=4, tokens=None, sentences=2)
    >>> [batch.image.shape[0] for batch in batches.epoch(0)]
    [2, 1]
    """

    def __init__(
        self,
        data: EncodedCaptions,
        pixels: Pixels,
        *,
        size: int,
        augmentation: Augmentation | None = None,
        images: bool = True,
        workers: int = 0,
        tokens: int | None = None,
        **options: Any,
    ):
        super().__init__(data, tokens, **options)
        self.image_rows, self.pixels, self.size = data.image_rows, pixels, size
        self.augmentation, self.images, self.workers = augmentation, images, workers

    def epoch(self, epoch: int, start: int = 0, data: EncodedPairs | None = None) -> Iterator[ImageBatch]:
        """Iterate over the batches of an epoch from batch `start` on; earlier batches are not computed."""
        texts = super().epoch(epoch, start, data)
        return (self._with_images(text, epoch) for text in texts)

    def _with_images(self, text: Batch, epoch: int) -> ImageBatch:
        rows = torch.from_numpy(self.image_rows[text.index.numpy()])
        if not self.images:
            if self.augmentation is not None:
                choices = self.augmentation.draw(text.index, epoch, self.pixels.size, self.pixels.size)
                rows = torch.cat((rows[:, None], choices), 1)
            return ImageBatch.of_text(rows, text)
        from regard.data.images.image_file import centre_crop

        images = self.pixels.load(rows, self.workers)
        if self.augmentation is not None:
            return ImageBatch.of_text(self.augmentation(images, text.index, epoch), text)
        return ImageBatch.of_text(centre_crop(images, self.size), text)
