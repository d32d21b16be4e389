"""Misaligned pairs: which lines of two parallel files seem to have no counterpart."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy

from regard.data.line_features import MOST_FEATURES, Features, Scores, likeness
from regard.data.pair_formats import CountsDiffer
from regard.data.read_text import UTF_16, read_blocks
from regard.errors import DataError, message, printable, shown

__all__ = ["Missing", "Shifted", "counts_differ", "lines_without_counterpart", "shifted_lines"]

CLEAR = 5.0
"""Minimum log-likelihood gain to report a line as missing."""

FEW = 5
"""Up to this many extra lines are located one by one; more are assumed to be one block."""

MOST = 1_000_000
"""At most this many lines are compared if both files have the same number."""

NEAR, FAR = 500, 150
"""Number of lines around a place to learn word pairs from, and the search radius around it."""

NAMED = 3
"""At most this many lines are named."""


Words = frozenset[str]


class Shifted(NamedTuple):
    """Lines of two files of the same number of lines that fit the line before or after their own better.

    source, target: the line of each file, from 0 on, that has no counterpart. lines: how many are between.
    """

    source: int
    target: int
    lines: int


class Missing(NamedTuple):
    """A line of the longer side, from 0 on, that seems to have no counterpart.

    gains: for each line of the shorter side, how much likelier it goes with the line before this one's place
    than with the one after it, as a logarithm.
    """

    line: int
    gains: Scores


def lines_without_counterpart(source: Features, target: Features) -> list[Missing]:
    """The lines of the longer side that seem to have no counterpart; none where its end has none.

    Each line of the shorter side is matched with the line of its own number, or with one that is further
    down by as many lines as are missing before it. The places are those where the sum of likeness() is
    largest, found by dynamic programming. It is learned from the files themselves what is alike.
    """
    swapped = len(source) > len(target)
    short, long = (target, source) if swapped else (source, target)
    shared, extra = len(short), len(long) - len(short)
    few = extra <= FEW and shared <= MOST
    offsets = list(range(extra + 1)) if few else [0, extra]

    def paired(first: int, last: int, offset: int) -> tuple[Features, Features]:
        one, other = short.part(first, last), long.part(first + offset, last + offset)
        return (other, one) if swapped else (one, other)

    every = [paired(0, shared, offset) for offset in offsets]
    known, jumps = every, [shared] * (len(offsets) - 1)
    for _ in range(3):
        scores = likeness(known, every)
        jumps, gain = _best_jumps(scores)
        bounds = [0, *jumps, shared]
        known = [
            paired(first, last, offset)
            for offset, first, last in zip(offsets, bounds[:-1], bounds[1:], strict=True)
        ]
    if gain < CLEAR:
        return []
    each = 1 if few else extra
    return [
        Missing(jump + number + more, scores[number] - scores[number + 1])
        for number, jump in enumerate(jumps)
        for more in range(each)
    ]


def _best_jumps(scores: list[Scores]) -> tuple[list[int], float]:
    """Where each next offset begins, so that the sum of scores is largest; and how much it is above none."""
    sums = [numpy.concatenate(([0.0], numpy.cumsum(each, dtype=numpy.float64))) for each in scores]
    best, changes = sums[0], []
    for each in sums[1:]:
        before = best - each
        highest = numpy.maximum.accumulate(before)
        first = numpy.where(before == highest, numpy.arange(len(before)), 0)
        changes.append(numpy.maximum.accumulate(first))
        best = each + highest
    place, jumps = len(best) - 1, list[int]()
    for change in reversed(changes):
        place = int(change[place])
        jumps.insert(0, place)
    return jumps, float(best[-1] - sums[0][-1])


def shifted_lines(source: Features, target: Features) -> Shifted | None:
    """Lines that fit the line before or after their own better: one is missing in each file, at two places.

    None where there are none, as far as lengths, final marks and digits can tell.
    """
    source, target = source.part(0, MOST), target.part(0, MOST)
    count = len(source) - 1
    if count < 1:
        return None
    own = (source.part(0, count), target.part(0, count))
    best, found = 10.0 + 2.0 * math.log(count + 1), None
    for forward in (True, False):
        moved = (
            (source.part(0, count), target.part(1, count + 1))
            if forward
            else (source.part(1, count + 1), target.part(0, count))
        )
        known = [own, moved]
        for _ in range(2):
            plain, other = likeness(known, [own, moved])
            sums = numpy.concatenate(([0.0], numpy.cumsum(other - plain, dtype=numpy.float64)))
            gains = sums - numpy.minimum.accumulate(sums)
            last = int(numpy.argmax(gains))
            first = int(numpy.argmin(sums[: last + 1]))
            before, after = ((own[0].part(*at), own[1].part(*at)) for at in ((0, first), (last + 1, None)))
            known = [before, (moved[0].part(first, last), moved[1].part(first, last)), after]
        if gains[last] > best:
            best = float(gains[last])
            found = Shifted(last, first, last - first) if forward else Shifted(first, last, last - first)
    return found


def counts_differ(difference: CountsDiffer, source: Features, target: Features) -> DataError:
    """The error for two files with different numbers of lines: it names the lines without a counterpart.

    source, target: the features of the lines that were read before the shorter file ended.
    """
    counts, shared = difference.counts, min(difference.counts)
    sides = [features.part(max(len(features) - shared, 0)) for features in (source, target)]
    longer = int(counts[1] > counts[0])
    sides[longer] = Features.joined((sides[longer], difference.rest))
    complete = (len(sides[0]), len(sides[1])) == counts
    names = [shown(path) for path in difference.paths]
    lines = [f"{counts[0]:,} lines against {counts[1]:,}, so they are not parallel"]
    missing = lines_without_counterpart(sides[0], sides[1]) if complete else []
    if 0 < abs(counts[1] - counts[0]) <= FEW:
        short, long = difference.paths[1 - longer], difference.paths[longer]
        found = [_by_words(short, long, each, number) for number, each in enumerate(missing)]
    else:
        found = [each.line for each in missing]
    if not complete:
        hint = f"the line is looked for in files of up to {MOST_FEATURES:,} lines: check parts of these files"
    elif not missing:
        hint = f"each pair looks right as far as {names[1 - longer]} goes: is its end missing?"
    else:
        for line in found[:NAMED]:
            lines.append(
                f"line {line + 1:,} of {names[longer]} seems to have no counterpart in {names[1 - longer]}:"
            )
            lines.append(f"  {_line(difference.paths[longer], line)}")
        more = len(found) - NAMED
        lines += [f"and {more:,} more lines of it"] if more > 0 else []
        hint = "compare the files there and near there: a line is missing, or one is broken in two"
    if any(b"\0" in raw.data for path in difference.paths for raw in itertools.islice(read_blocks(path), 1)):
        hint = f"{UTF_16}; if not, {hint}"
    return DataError(message(" and ".join(names), "\n".join(lines), hint=hint))


def _by_words(short: Path, long: Path, missing: Missing, offset: int) -> int:
    """The line of the longer file without a counterpart, found again near there by the words of the lines.

    Neighbours may be of the same length and end alike, above all in files that are sorted. Which words are
    translations of each other is learned from the lines around. offset: how many lines are missing before.
    """
    jump = missing.line - offset
    first = max(jump - NEAR, 0)
    ours = [frozenset(line.split()) for line in _lines(short, first, jump + NEAR)]
    theirs = [frozenset(line.split()) for line in _lines(long, first + offset, jump + NEAR + offset + 1)]
    count = min(len(ours), len(theirs) - 1)
    place = begun = jump - first
    least, most = max(begun - FAR, 0), begun + FAR
    for _ in range(3):
        alike = _Dictionary(ours[:count], theirs[: count + 1], place)
        by_words = [alike(i, i) - alike(i, i + 1) for i in range(count)]
        gains = numpy.array(by_words) + missing.gains[first : first + count]
        sums = numpy.concatenate(([0.0], numpy.cumsum(gains)))
        place = least + int(numpy.argmax(sums[least : most + 1]))
    return first + place + offset


class _Dictionary:
    """Which words of two sides go together, learned from their lines, each a set of words.

    place: the line of the target side that has no counterpart.
    """

    def __init__(self, source: list[Words], target: list[Words], place: int):
        self.source, self.target, self.place = source, target, place
        pairs = [(words, target[self.partner(i)]) for i, words in enumerate(source)]
        self.ours = Counter(word for words, _ in pairs for word in words)
        self.theirs = Counter(word for _, words in pairs for word in words)
        self.both = Counter((a, b) for one, other in pairs for a in one for b in other)

    def partner(self, line: int) -> int:
        """The target line of a source line."""
        return line + (line >= self.place)

    def __call__(self, i: int, j: int) -> float:
        """How well source line i and target line j fit, by the best partner of each of their words.

        What was learned from these two lines themselves does not count.
        """
        one, other = self.source[i], self.target[j]
        same = self.partner(i) == j
        of_one: Words = frozenset() if same else self.target[self.partner(i)]
        of_other: Words = frozenset() if same or j == self.place else self.source[j - (j > self.place)]
        best, best_for = dict.fromkeys(one, 0.0), dict.fromkeys(other, 0.0)
        for a in one:
            for b in other:
                twice = (a in of_other) + (b in of_one)
                together = self.both[a, b] - (same or twice)
                if together > 0:
                    ours, theirs = self.ours[a] - 1 - (a in of_other), self.theirs[b] - 1 - (b in of_one)
                    fit = math.log((together + 0.5) / (ours * theirs / len(self.source) + 0.5))
                    best[a], best_for[b] = max(best[a], fit), max(best_for[b], fit)
        return sum(sum(each.values()) / max(len(each), 1) for each in (best, best_for))


def _lines(path: Path, first: int, last: int) -> list[str]:
    """Some lines of a file, from 0 on, in lower case."""
    raws = (line for raw in read_blocks(path) for line in raw.data.split(b"\n")[:-1])
    return [line.decode("utf-8", "replace").lower() for line in itertools.islice(raws, first, last)]


def _line(path: Path, index: int) -> str:
    """The beginning of a line of a file, to be shown."""
    raws = (line for raw in read_blocks(path) for line in raw.data.split(b"\n")[:-1])
    line = next(itertools.islice(raws, index, None), b"")
    return printable(line[:240].decode("utf-8", "replace"))[:60]
