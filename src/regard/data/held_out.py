"""Held out: some pairs kept apart to judge by, chosen by a hash of the sentence and not by its place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from regard.data.pairs import Pairs
from regard.data.progress import advancing
from regard.errors import ArgumentError, DataError, message

__all__ = ["HeldOut", "hold_out"]

Hashes = NDArray[numpy.uint64]


@dataclass(frozen=True)
class HeldOut:
    """Pairs to train on and pairs to judge by: `train, valid = hold_out(...)`.

    duplicates: how many pairs were left out as the same as one before. shared: how many were left out of
    train for a target that is in valid too. dropped: how many the choices of the pairs had dropped before,
    which pairs.inspect() tells of. print() says it in a sentence.

    >>> from regard.data.pairs import pairs_from_lists
    >>> print(hold_out(pairs_from_lists(["a", "b", "c", "c"], ["1", "2", "3", "3"]), count=1))
    2 pairs to train on, 1 held out; left out: 1 the same as one before, 0 whose target is held out, 0 dropped
    """

    train: Pairs
    valid: Pairs
    duplicates: int
    shared: int
    dropped: int = 0

    def __iter__(self) -> Iterator[Pairs]:
        return iter((self.train, self.valid))

    def __str__(self) -> str:
        return (
            f"{len(self.train):,} pairs to train on, {len(self.valid):,} held out; left out: "
            f"{self.duplicates:,} the same as one before, {self.shared:,} whose target is held out, "
            f"{self.dropped:,} dropped"
        )


def hold_out(
    pairs: Pairs, *, count: int | None = None, fraction: float | None = None, seed: int = 0
) -> HeldOut:
    """Split pairs into those to train on and a few to judge by, by a hash of the source sentence.

    count: hold out this many pairs, or a few less where the last sentence has too many translations; or
    fraction: hold out about this part of the sentences. seed: another one gives another split.

    Sentences are compared with each run of white space taken as one space. Of pairs that are the same, the
    first is kept. All pairs with the same source are on the same side, and pairs whose target is held out are
    left out of train: so no source and no target of one is in the other. The split does not depend on the
    order of the pairs; with fraction, a sentence stays where it is when others are added. A pair takes a few
    dozen bytes of memory while this runs, and two after it; the text is never held.

    >>> from regard.data.pairs import pairs_from_lists
    >>> numbers = [str(number) for number in range(1000)]
    >>> train, valid = hold_out(pairs_from_lists(numbers, numbers), count=100)
    >>> len(train), len(valid)
    (900, 100)
    """
    if (count is None) == (fraction is None):
        raise ArgumentError(message("hold_out()", "give count or fraction", expected="one of the two"))
    if not isinstance(pairs, Pairs):
        problem = f"pairs is of type {type(pairs).__name__}"
        hint = "read_pairs(...) reads files, pairs_from_lists(sources, targets) takes lists"
        raise ArgumentError(message("hold_out()", problem, expected="Pairs", hint=hint))
    if count is not None and (not isinstance(count, int) or count < 1):
        expected = "a whole number, at least 1"
        raise ArgumentError(message("hold_out()", f"count is {count}", expected=expected))
    if fraction is not None and not 0 < fraction < 1:
        raise ArgumentError(message("hold_out()", f"fraction is {fraction}", expected="between 0 and 1"))
    positions, sources, targets = _hashes(pairs, seed)
    # Both are hashes already: one multiplied by an odd number keeps (a, b) and (b, a) apart.
    _, first = numpy.unique(sources * numpy.uint64(0x9E3779B97F4A7C15) + targets, return_index=True)
    first.sort()
    duplicates = len(positions) - len(first)
    positions, sources, targets = positions[first], sources[first], targets[first]
    if count is None:
        assert fraction is not None
        held = sources < numpy.uint64(int(fraction * 2**64))
    else:
        held = sources <= _limit(sources, count)
    known = numpy.isin(targets, targets[held])
    learned = ~held & ~known
    if not held.any() or not learned.any():
        problem = f"{held.sum()} of {len(held)} pairs would be held out, {learned.sum()} left to train on"
        hint = "hold out fewer, or give more pairs"
        raise DataError(message(f"hold_out() of {pairs.name}", problem, hint=hint))
    report = pairs.inspect()
    read = report.read
    parts = []
    for chosen, name in ((learned, "to train on"), (held, "held out")):
        selected = numpy.zeros(read, bool)
        selected[positions[chosen]] = True
        parts.append(pairs.only(selected, f"{pairs.name}, {name}"))
    return HeldOut(parts[0], parts[1], duplicates, int((known & ~held).sum()), read - report.kept)


def _limit(sources: Hashes, count: int) -> numpy.uint64:
    """The hash up to which there are at most `count` pairs, or all pairs of one source if those are more."""
    values, counts = numpy.unique(sources, return_counts=True)
    if not len(values):
        return numpy.uint64(0)
    fitting = int(numpy.searchsorted(numpy.cumsum(counts), count, side="right"))
    return values[max(fitting - 1, 0)]


def _hashes(pairs: Pairs, seed: int) -> tuple[NDArray[numpy.int64], Hashes, Hashes]:
    """The position of each pair, and hashes of its sides that are the same on every machine."""
    key = str(seed).encode()

    def hashed(text: str) -> int:
        words = " ".join(text.split()).encode("utf-8")
        return int.from_bytes(hashlib.blake2b(words, digest_size=8, key=key).digest(), "little")

    size = len(pairs)
    positions = numpy.zeros(size, numpy.int64)
    sources, targets = numpy.zeros(size, numpy.uint64), numpy.zeros(size, numpy.uint64)
    with advancing("splitting pairs", size) as reached:
        for i, pair in enumerate(pairs):
            positions[i], sources[i], targets[i] = pair.number - 1, hashed(pair.source), hashed(pair.target)
            if i % 10_000 == 0:
                reached(i)
    return positions, sources, targets
