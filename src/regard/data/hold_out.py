"""hold_out(): split sentence pairs into training pairs and held-out pairs, for validation or test.

A hash of the source sentence decides whether a pair is held out, so the split does not depend on the order of
the pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy
from numpy.typing import NDArray

from regard.data.pairs import Pairs
from regard.data.progress_bar import advancing
from regard.errors import ArgumentError, DataError, UnknownName, message

__all__ = ["HeldOut", "hold_out"]

Hashes = NDArray[numpy.uint64]

RULES = ("auto", "both", "source")

MOST_LEFT_OUT = 0.5
"""Maximum fraction of the training pairs that hold_out() drops with disjoint="auto".

Training pairs are dropped if their target also occurs in a held-out pair. If this would drop more than the
maximum fraction, the targets are probably class labels. Then no pair is dropped: training pairs and held-out
pairs have different sources, but some have the same target."""


@dataclass(frozen=True)
class HeldOut:
    """The result of hold_out(): training pairs and held-out pairs.

    `train, valid = hold_out(...)` unpacks the result.

    train: the training pairs.
    valid: the held-out pairs.
    duplicates: number of pairs dropped because they equal an earlier pair.
    shared: number of pairs dropped from `train` because their target also occurs in `valid`.
    dropped: number of pairs that were dropped before the split because of a problem, such as an empty side.
        pairs.inspect() lists these problems.
    disjoint: "both" if train and valid share no source and no target, "source" if they may share targets.
    why: the reason if `disjoint` is "source", otherwise "".

    str() returns a summary in one line.

    >>> from regard.data.pairs import pairs_from_lists
    >>> print(hold_out(pairs_from_lists(["a", "b", "c", "c"], ["1", "2", "3", "3"]), count=1))
    2 training pairs, 1 held out; the data check dropped 0, the split dropped
    1 duplicate, 0 whose target is held out
    """

    train: Pairs
    valid: Pairs
    duplicates: int
    shared: int
    dropped: int = 0
    disjoint: Literal["both", "source"] = "both"
    why: str = ""

    def __iter__(self) -> Iterator[Pairs]:
        return iter((self.train, self.valid))

    def __str__(self) -> str:
        shared = f", {self.shared:,} whose target is held out" if self.disjoint == "both" else ""
        report = (
            f"{len(self.train):,} training pairs, {len(self.valid):,} held out; the data check dropped "
            f"{self.dropped:,}, the split dropped {self.duplicates:,} "
            f"duplicate{'' if self.duplicates == 1 else 's'}{shared}"
        )
        return f"{report}; held out by source only: {self.why}" if self.disjoint == "source" else report


def hold_out(
    pairs: Pairs,
    *,
    count: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    disjoint: str = "auto",
) -> HeldOut:
    """Split pairs into training pairs and held-out pairs, by a hash of the source sentence.

    count: number of pairs to hold out. All translations of a source sentence stay together, so the result can
        have a few pairs less.
    fraction: approximate fraction of the sentences to hold out. Set either `count` or `fraction`.
    seed: random seed; another seed gives another split.
    disjoint: "both" removes training pairs whose target also occurs in a held-out pair, so that no source and
        no target is in both parts. "source" keeps these pairs, so that only the sources are disjoint; use it
        if the targets are labels. "auto" is "both", unless that removes more than half of the training pairs.

    Sentences that differ only in white space are equal. Of equal pairs, the first is kept. All pairs with the
    same source are in the same part. The split does not depend on the order of the pairs. With `fraction`, a
    training pair remains a training pair if pairs are added to the data, and a held-out pair remains held
    out. Memory use is a few dozen bytes per pair during the split and two bytes per pair afterwards; the text
    is not held in memory.

    In the second example, the targets are two labels, which occur in both parts. So "auto" means "source".

    >>> from regard.data.pairs import pairs_from_lists
    >>> numbers = [str(number) for number in range(1000)]
    >>> train, valid = hold_out(pairs_from_lists(numbers, numbers), count=100)
    >>> len(train), len(valid)
    (900, 100)
    >>> parity = hold_out(pairs_from_lists(numbers, ["odd", "even"] * 500), count=100)
    >>> len(parity.train), len(parity.valid), parity.disjoint
    (900, 100, 'source')
    """
    call = "hold_out()"
    if (count is None) == (fraction is None):
        both = "both count and fraction are given"
        problem = "neither count nor fraction is given" if count is None else both
        raise ArgumentError(message(call, problem, expected="either count or fraction"))
    if not isinstance(pairs, Pairs):
        hint = "use read_pairs(...) for files, pairs_from_lists(sources, targets) for lists"
        problem = f"pairs is of type {type(pairs).__name__}"
        raise ArgumentError(message(call, problem, expected="Pairs", hint=hint))
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ArgumentError(message(call, f"count is {count}", expected="an integer, at least 1"))
    if fraction is not None and not 0 < fraction < 1:
        expected = "a number between 0 and 1"
        raise ArgumentError(message(call, f"fraction is {fraction}", expected=expected))
    if disjoint not in RULES:
        raise UnknownName("value of disjoint", disjoint, RULES)
    positions, sources, targets = _hashes(pairs, seed)
    # One hash is multiplied by an odd number, so that the pairs (a, b) and (b, a) get different hashes.
    _, first = numpy.unique(sources * numpy.uint64(0x9E3779B97F4A7C15) + targets, return_index=True)
    first.sort()
    duplicates = len(positions) - len(first)
    positions, sources, targets = positions[first], sources[first], targets[first]
    if count is None:
        assert fraction is not None
        held = sources < numpy.uint64(int(fraction * 2**64))
    else:
        # The sources with the smallest hashes, as long as they have at most `count` pairs; but at least one.
        values, counts = numpy.unique(sources, return_counts=True)
        fitting = int((numpy.cumsum(counts) <= count).sum())
        held = numpy.isin(sources, values[: max(fitting, 1)])
    shared = numpy.isin(targets, targets[held]) & ~held
    left, repeated, why = int((~held).sum()), int(shared.sum()), ""
    if disjoint == "source":
        why = "as requested"
    elif disjoint == "auto" and held.any() and repeated > MOST_LEFT_OUT * left:
        why = (
            f"{len(targets):,} pairs have {len(numpy.unique(targets)):,} distinct targets, and {repeated:,} "
            f"of {left:,} pairs to train on have a target that is held out"
        )
    shared &= not why
    training = ~held & ~shared
    if not held.any() or not training.any():
        problem = f"{held.sum()} of {len(held)} pairs would be held out, {training.sum()} left to train on"
        hint = "hold out fewer pairs, or provide more pairs"
        raise DataError(message(pairs.name, problem, hint=hint))
    report = pairs.inspect()
    read = report.read
    parts = []
    for chosen, name in ((training, "to train on"), (held, "held out")):
        selected = numpy.zeros(read, bool)
        selected[positions[chosen]] = True
        parts.append(pairs.only(selected, f"{pairs.name}, {name}"))
    return HeldOut(
        parts[0],
        parts[1],
        duplicates,
        int(shared.sum()),
        read - report.kept,
        "source" if why else "both",
        why,
    )


def _hashes(pairs: Pairs, seed: int) -> tuple[NDArray[numpy.int64], Hashes, Hashes]:
    """Return three arrays: the position of each pair, the hash of each source, and the hash of each target.

    The hashes are the same on every machine.
    """
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
