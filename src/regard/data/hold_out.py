"""Hold out some pairs for validation or test, chosen by a hash of the source sentence, not by position."""

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
"""If more than this fraction of the training pairs would be removed because their target is held out, targets
are labels, and only sources are kept disjoint."""


@dataclass(frozen=True)
class HeldOut:
    """Pairs to train on and pairs held out: `train, valid = hold_out(...)`.

    duplicates: pairs dropped because the same pair came before. shared: pairs dropped from train because
    their target is held out. dropped: pairs that the data check had dropped before; pairs.inspect() lists
    them. disjoint: "both" where train and valid share no source and no target, "source" where they
    share targets. why: the reason for "source"; "" otherwise. str() is the report in one line.

    >>> from regard.data.pairs import pairs_from_lists
    >>> print(hold_out(pairs_from_lists(["a", "b", "c", "c"], ["1", "2", "3", "3"]), count=1))
    2 training pairs, 1 held out; dropped: 1 duplicate, 0 whose target is held out, 0 by the data check
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
        shared = f"{self.shared:,} whose target is held out, " if self.disjoint == "both" else ""
        report = (
            f"{len(self.train):,} training pairs, {len(self.valid):,} held out; dropped: "
            f"{self.duplicates:,} duplicate{'' if self.duplicates == 1 else 's'}, {shared}"
            f"{self.dropped:,} by the data check"
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
    """Split pairs into those to train on and a few held out, by a hash of the source sentence.

    count: hold out this many pairs, or a few less where the last sentence has too many translations; or
    fraction: hold out about this part of the sentences. seed: another one gives another split. disjoint:
    "both" removes training pairs whose target is held out, so that no source and no target is in both parts;
    "source" keeps them, so that only sources are disjoint: labels could not be learned otherwise. "auto" is
    "both", unless that removes more than half of the training pairs.

    Sentences are compared with each run of white space taken as one space. Of equal pairs, the first is kept.
    All pairs with the same source are in the same part. The split does not depend on the order of the pairs;
    with fraction, a sentence stays in its part when others are added. A pair takes a few dozen bytes of
    memory while this runs, and two after it; the text is never held.

    >>> from regard.data.pairs import pairs_from_lists
    >>> numbers = [str(number) for number in range(1000)]
    >>> train, valid = hold_out(pairs_from_lists(numbers, numbers), count=100)
    >>> len(train), len(valid)
    (900, 100)
    >>> parity = hold_out(pairs_from_lists(numbers, ["odd", "even"] * 500), count=100)
    >>> len(parity.train), len(parity.valid), parity.disjoint
    (900, 100, 'source')
    """
    _check(pairs, count, fraction, disjoint)
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
    known = numpy.isin(targets, targets[held]) & ~held
    why = _by_source(disjoint, held, known, targets)
    known &= not why
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
    return HeldOut(
        parts[0],
        parts[1],
        duplicates,
        int(known.sum()),
        read - report.kept,
        "source" if why else "both",
        why,
    )


def _check(pairs: Pairs, count: int | None, fraction: float | None, disjoint: str) -> None:
    """Raise where hold_out() cannot take these arguments."""
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
    if disjoint not in RULES:
        raise UnknownName("rule for a split", disjoint, RULES)


def _by_source(
    disjoint: str, held: NDArray[numpy.bool_], known: NDArray[numpy.bool_], targets: Hashes
) -> str:
    """Why only the sources of a split are disjoint; "" where its targets are disjoint too.

    known: pairs that are not held out and whose target is.
    """
    left, repeated = int((~held).sum()), int(known.sum())
    if disjoint == "source":
        return "as requested"
    if disjoint == "both" or not held.any() or repeated <= MOST_LEFT_OUT * left:
        return ""
    distinct = len(numpy.unique(targets))
    return (
        f"{len(targets):,} pairs have {distinct:,} distinct targets, and {repeated:,} of {left:,} pairs to "
        "train on have a target that is held out"
    )


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
