"""Batches: pairs grouped by length under a budget of tokens, in an order that (seed, epoch) decides alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch
from regard.data.encoded_pairs import EncodedPairs, Side
from regard.errors import ArgumentError, DataError, message

__all__ = ["Batches", "Plan"]

WINDOW = 2**18
"""Samples that are sorted by length together. Batches of a window are alike; windows are drawn at random."""


class Plan(NamedTuple):
    """An epoch: the samples in their order, and where each batch begins and ends among them.

    order: (N,), rows of the data. begins, ends: (batches,), in the order in which the batches come.
    """

    order: NDArray[numpy.int32]
    begins: NDArray[numpy.int64]
    ends: NDArray[numpy.int64]

    def rows(self, batch: int) -> NDArray[numpy.int32]:
        """The rows of the data that are in a batch."""
        return self.order[self.begins[batch] : self.ends[batch]]


class Batches:
    """Batches of about as many tokens each, of sentences of about the same length.

    tokens: the budget of a batch and process: on neither side, rows times the longest sentence are more, EOS
    and padding counted. A sentence that is longer by itself is a batch of its own. sentences: the most rows
    of a batch and process. longest: leave out samples with more tokens on a side, without BOS and EOS.
    rounded: lengths, EOS counted, that batches will be padded to, each to the next of them: the budget is
    kept by those.
    shuffle: False is the same batches every epoch, the shortest first; batch.index says which they are.

    The order of an epoch depends on the data, these numbers, (seed, epoch), and nothing that happened before;
    each sample comes once. Of `world` processes, each takes its part, from row `rank` on every world-th, of
    batches that are world times as large: together they see what one process with such batches sees. So that
    none is left without a row, the last two batches of a window may become one, a row over the budget.

    To sample subwords anew each time, encode the text of `batch.index` again, with a generator of its own:
    tokenizer.encode(line, sample=0.1, generator=random.Random(f"{seed} {epoch} {number}")).

    >>> from regard.data.encoded_pairs import EncodedPairs
    >>> data = EncodedPairs.in_memory([[7, 8], [9], [5], [6, 6]], [[5], [6, 4], [8], [8]])
    >>> [batch.index.tolist() for batch in Batches(data, tokens=6).epoch(0)]
    [[2, 1], [3, 0]]
    """

    def __init__(
        self,
        data: EncodedPairs,
        tokens: int = 4096,
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
        if rank >= world:
            raise ArgumentError(message("Batches()", f"rank is {rank}", expected=f"0 to {world - 1}"))
        self.data, self.shuffle, self.seed = data, shuffle, seed
        self._rounded = numpy.sort(numpy.array(rounded, numpy.int32))
        self.rank, self.world = rank, world
        self._tokens, self._sentences = tokens * world, sentences and sentences * world
        # The longer side decides what a row costs.
        self._lengths = numpy.maximum(data.source_lengths, data.target_lengths)
        fits = numpy.ones(len(data), bool) if longest is None else self._lengths <= longest
        self._kept = numpy.flatnonzero(fits).astype(numpy.int32)
        self.left_out = len(data) - len(self._kept)
        if len(self._kept) < world:
            problem = f"{len(self._kept)} of {len(data)} samples are left, for {world} processes"
            hint = "a larger longest" if self.left_out else "give more data"
            raise DataError(message("Batches()", problem, expected="one a process at least", hint=hint))
        self._planned: tuple[int, Plan] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on: the same as without the ones before."""
        plan = self.plan(epoch)
        if not 0 <= start <= len(plan.begins):
            expected = f"0 to {len(plan.begins)}, the batches of epoch {epoch}"
            raise ArgumentError(message("Batches.epoch()", f"start is {start}", expected=expected))
        return self._made(plan, start)

    def len_epoch(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return len(self.plan(epoch).begins)

    def largest(self, epoch: int) -> int:
        """Which batch of an epoch has the most tokens, padding counted."""
        plan = self.plan(epoch)
        sizes = [
            (end - begin) * int(self._lengths[plan.order[begin:end]].max() + 1)
            for begin, end in zip(plan.begins.tolist(), plan.ends.tolist(), strict=True)
        ]
        return sizes.index(max(sizes))

    def samples_before(self, epoch: int, batch: int) -> int:
        """How many samples of an epoch come before a batch, those of all processes counted."""
        plan = self.plan(epoch)
        return int((plan.ends[:batch] - plan.begins[:batch]).sum())

    def plan(self, epoch: int) -> Plan:
        """The order of an epoch; the last one asked for is kept."""
        if epoch < 0:
            raise ArgumentError(message("Batches.plan()", f"epoch is {epoch}", expected="0 or more"))
        if self._planned is None or self._planned[0] != epoch:
            self._planned = None  # the memory of the old one is free before the new one is made
            self._planned = epoch, self._plan(epoch)
        return self._planned[1]

    def _plan(self, epoch: int) -> Plan:
        # Raw bits of a bit generator are the same in every version of numpy; its permutations need not be.
        bits = numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch)))
        order = self._kept[_shuffled(len(self._kept), bits)] if self.shuffle else self._kept.copy()
        # Parts of the same size: a short last one would make batches with too little to choose from.
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
        """The tokens that a row takes in a batch of which it is the longest."""
        costs = self._lengths[rows] + 1
        places = numpy.searchsorted(self._rounded, costs)
        within = places < len(self._rounded)
        costs[within] = self._rounded[places[within]]
        return costs

    def _sorted(self, rows: NDArray[numpy.int32]) -> NDArray[numpy.int64]:
        """The order that puts rows of about the same length together: by the longer side, then by the source.

        Equal ones stay in the order they had, which is random.
        """
        key = self._lengths[rows].astype(numpy.int64) << 32 | self.data.source_lengths[rows]
        return numpy.argsort(key, kind="stable")

    def _cuts(self, costs: NDArray[numpy.int32]) -> list[int]:
        """Where the batches of rows with ascending costs end."""
        ends = [0]
        while ends[-1] < len(costs):
            begin = ends[-1]
            most = self._tokens // int(costs[begin])
            if self._sentences is not None:
                most = min(most, self._sentences)
            ahead = costs[begin : begin + most]
            rows = int(numpy.count_nonzero(ahead * numpy.arange(1, len(ahead) + 1) <= self._tokens))
            # Every process must get a row, or the others would wait for it without end.
            ends.append(min(begin + max(rows, self.world), len(costs)))
        if len(ends) > 2 and ends[-1] - ends[-2] < self.world:
            del ends[-2]
        return ends[1:]

    def _made(self, plan: Plan, start: int) -> Iterator[Batch]:
        for number in range(start, len(plan.begins)):
            rows = plan.rows(number)[self.rank :: self.world]
            source, source_lengths = _padded(self.data.sources, rows, begin=False)
            target, target_lengths = _padded(self.data.targets, rows, begin=True)
            index = torch.from_numpy(self.data.numbers[rows])
            yield Batch(source, source_lengths, target, target_lengths, index)


def _check(least: int, **given: int | None) -> None:
    for name, value in given.items():
        if value is not None and (not isinstance(value, int | numpy.integer) or value < least):
            expected = f"a whole number, {least} or more"
            raise ArgumentError(message("Batches()", f"{name} is {value!r}", expected=expected))


def _shuffled(count: int, bits: numpy.random.PCG64) -> NDArray[numpy.int64]:
    """The numbers below count in random order."""
    return numpy.argsort(bits.random_raw(count), kind="stable")


def _padded(side: Side, rows: NDArray[numpy.int32], begin: bool) -> tuple[Tensor, Tensor]:
    """The sentences of some rows between BOS, if they begin so, and EOS, padded; and their lengths."""
    tokens, lengths = side.gather(rows)
    places = numpy.arange(int(lengths.max()))
    padded = numpy.full((len(rows), begin + len(places) + 1), PAD, numpy.int64)
    padded[:, begin:-1][places < lengths[:, None]] = tokens
    padded[numpy.arange(len(rows)), begin + lengths] = EOS
    if begin:
        padded[:, 0] = BOS
    return torch.from_numpy(padded), torch.from_numpy(lengths + 1)
