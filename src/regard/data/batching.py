"""Batches: group sentence pairs of similar length into batches with a limited number of tokens.

For the same data and settings, the order of the batches depends only on (seed, epoch).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch
from regard.data.encoded_pairs import EncodedPairs, Side
from regard.errors import ArgumentError, DataError, message

__all__ = ["Batches", "Plan", "SimilarLengths", "padded_rows"]

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
        _check(1, tokens=tokens, sentences=sentences, longest=longest, world=world)
        _check(0, rank=rank, seed=seed)
        if tokens is None and sentences is None:
            raise ArgumentError(message("Batches()", "batch size is not set", expected="tokens or sentences"))
        if rank >= world:
            raise ArgumentError(
                message("Batches()", f"rank is {rank}", expected=f"a rank from 0 to {world - 1}")
            )
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
        if not 0 <= start <= len(plan.begins):
            expected = f"0 to {len(plan.begins)}, the number of batches of epoch {epoch}"
            raise ArgumentError(message("Batches.epoch()", f"start is {start}", expected=expected))
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
            part[:] = part[self._sorted(part)]
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

    def _sorted(self, rows: NDArray[numpy.int32]) -> NDArray[numpy.int64]:
        """Return the indices that sort samples by their length, then by their source length.

        The length of a sample is the larger of its source length and its target length. The sort is stable,
        so samples of equal length keep their random order.
        """
        key = self._lengths[rows].astype(numpy.int64) << 32 | self.data.source_lengths[rows]
        return numpy.argsort(key, kind="stable")

    def _cuts(self, costs: NDArray[numpy.int32]) -> list[int]:
        """Divide samples into batches. Return the end of each batch: the index after its last sample.

        costs: the cost of each sample, see _costs(), in ascending order.
        """
        ends = [0]
        while ends[-1] < len(costs):
            begin = ends[-1]
            rows = self._rows(costs[begin:])
            # Every process needs at least one row: a process without a batch would make the others wait
            # forever.
            ends.append(min(begin + max(rows, self.world), len(costs)))
        if len(ends) > 2 and ends[-1] - ends[-2] < self.world:
            del ends[-2]
        return ends[1:]

    def _rows(self, costs: NDArray[numpy.int32]) -> int:
        """Return how many samples the next batch gets; 0 if the first sample alone exceeds the token budget.

        costs: the costs of the remaining samples, see _costs(), in ascending order.
        """
        most = len(costs) if self._sentences is None else min(self._sentences, len(costs))
        if self._tokens is None:
            return most
        ahead = costs[: min(most, self._tokens // int(costs[0]))]
        return int(numpy.count_nonzero(ahead * numpy.arange(1, len(ahead) + 1) <= self._tokens))

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

    >>> from regard.data.encoded_pairs import EncodedPairs
    >>> data = EncodedPairs.in_memory([[7, 8], [9], [5], [6, 6]], [[5], [6, 4], [8], [8]])
    >>> [batch.index.tolist() for batch in Batches(data, tokens=6).epoch(0)]
    [[2, 1], [3, 0]]
    """

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> Batch:
        source, source_lengths = padded_rows(data.sources, rows, begin=False)
        target, target_lengths = padded_rows(data.targets, rows, begin=True)
        return Batch(source, source_lengths, target, target_lengths, torch.from_numpy(data.numbers[rows]))


def _check(least: int, **arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int | numpy.integer) or value < least):
            expected = f"an integer, {least} or more"
            raise ArgumentError(message("Batches()", f"{name} is {value!r}", expected=expected))


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
