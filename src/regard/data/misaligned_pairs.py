"""Misaligned pairs: find lines of a parallel file that probably have no translation in the other file.

Lines are compared by features that do not depend on the language: length, final punctuation and digits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.pair_blocks import Block, CountsDiffer
from regard.data.pair_checks import SHORT
from regard.data.read_text import Raw, read_blocks, to_bytes
from regard.errors import DataError, message, printable, shown

__all__ = [
    "BOUNDED",
    "MOST_FEATURES",
    "Features",
    "Shifted",
    "counts_differ",
    "features_of",
    "likeness",
    "lines_without_counterpart",
    "shifted_lines",
]

MOST_FEATURES = 4_000_000
"""Approximate maximum number of lines of a file whose features (length, last byte, digits) are in memory.

If two parallel files have different line counts, the features of all lines are needed to find the lines
without a translation. In files with more lines than this number, there is no search for such lines."""

BOUNDED = 100_000
"""Approximate maximum number of lines of a file that are searched before training.

`regard data check` searches up to MOST_FEATURES lines."""

BYTE, DIGITS = 256, 32
"""BYTE: number of different values of a byte.
DIGITS: number of different values of Features.digits."""

Scores = NDArray[numpy.float32]
LinePairs = list[tuple["Features", "Features"]]

CLEAR = 5.0
"""Minimum gain, in log-likelihood, for which extra lines of the longer of two parallel files are reported.

All lines except the extra lines are paired with lines of the other file. Each pair has a score, which is
higher if the lines are probably translations (see likeness()). The gain is a difference of two sums of
scores. The first sum uses the extra lines that were found. The second sum assumes that the last lines of the
file are the extra lines."""

FEW = 5
"""If one of two parallel files has at most this many extra lines, each extra line is located separately.

More extra lines are assumed to be consecutive."""

MOST = 1_000_000
"""Maximum number of lines for two searches in parallel files.

Files with the same line count: only the first MOST lines are searched for shifted lines.
Files with different line counts: each extra line is located separately only if the shorter file has at most
MOST lines. Otherwise, the extra lines are assumed to be consecutive."""

NAMED = 3
"""Maximum number of lines without a counterpart that the error message lists."""

FEWEST, PARALLEL = 20, 0.8
"""Two files look parallel if both have at least FEWEST lines and their line lengths are correlated.

To test the correlation, the length ratio of source line i and target line i is computed for all i. Then the
target lines are shuffled, and the ratios are computed again. The first ratios must vary less: their spread
divided by the spread of the second ratios must be below PARALLEL."""


class Features(NamedTuple):
    """Three features of lines that do not depend on the language, one array per feature.

    lengths: length of each line in characters.
    marks: the last byte of each line, usually its final punctuation.
    digits: 0 if the line has no digits, otherwise a number from 1 to 31 that depends on the sum of its
        digits.
    """

    lengths: NDArray[numpy.int32]
    marks: NDArray[numpy.uint8]
    digits: NDArray[numpy.uint8]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, last: int | None = None) -> Features:
        """Return the features of the lines from index `first` to `last` - 1; to the end if `last` is None."""
        return Features(self.lengths[first:last], self.marks[first:last], self.digits[first:last])

    @classmethod
    def joined(cls, parts: Iterable[Features]) -> Features:
        """Concatenate the features of several groups of lines."""
        types = (numpy.int32, numpy.uint8, numpy.uint8)
        columns = zip(*parts, strict=True)
        empty = tuple((numpy.zeros(0, kind),) for kind in types)
        return cls(*map(numpy.concatenate, list(columns) or empty))


def features_of(block: Block) -> Features:
    """Return length, last byte and digits of each line of a block as Features."""
    marks, digits = _bytes_of(block.raw)
    part = slice(block.index, block.index + len(block))
    return Features(block.lengths, marks[part], digits[part])


@functools.lru_cache(maxsize=2)
def _bytes_of(raw: Raw) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
    """Return the last byte and the digits of each line. A raw block is often divided into two blocks."""
    data = numpy.frombuffer((raw.data or to_bytes(raw.text)) + b"\n", numpy.uint8)
    ends = numpy.flatnonzero(data == ord("\n"))
    starts = numpy.concatenate(([0], ends[:-1] + 1))
    values = numpy.where((data >= ord("0")) & (data <= ord("9")), data - (ord("0") - 1), numpy.uint8(0))
    sums = numpy.add.reduceat(values, starts, dtype=numpy.int64)
    digits = numpy.where(sums > 0, 1 + sums % (DIGITS - 1), 0).astype(numpy.uint8)
    return data[ends - 1], digits


def likeness(aligned: LinePairs, candidates: LinePairs) -> list[Scores]:
    """Score pairs of lines: the higher the score, the more likely the two lines are translations.

    The score is a log-likelihood ratio, up to a constant:

        log p(features of both lines | translations) - log p(features of both lines | random lines)

    It is a sum over the features. For the length, the log of the length ratio is assumed to have a Laplace
    distribution. For each other feature, the term is the pointwise mutual information between its value in
    the source line and its value in the target line.

    aligned: a list of (source, target), the features of lines that are mostly translations of each other. The
        probabilities are estimated from these lines.
    candidates: a list of (source, target), the features of the lines to score. Line i of source and line i of
        target are one pair.

    Returns one array for each candidate, with one score for each pair of lines.
    """
    ratios = numpy.concatenate([length_ratios(*pair) for pair in aligned])
    usual = float(numpy.median(ratios)) if len(ratios) else 0.0
    # Medians are robust against the pairs that are not translations.
    spread = max(float(numpy.median(numpy.abs(ratios - usual))), 0.05) if len(ratios) else 1.0
    tables = (
        _information([(source.marks, target.marks) for source, target in aligned]),
        _information([(source.digits, target.digits) for source, target in aligned]),
    )
    scores = []
    for source, target in candidates:
        score = -numpy.minimum(numpy.abs(length_ratios(source, target) - usual) / spread, 6.0)
        score += tables[0][source.marks, target.marks] + tables[1][source.digits, target.digits]
        scores.append(score.astype(numpy.float32))
    return scores


def length_ratios(source: Features, target: Features) -> NDArray[numpy.float64]:
    """Return log(target length / source length) for each pair of lines.

    SHORT / 2 is added to both lengths, so that the ratio of short lines is closer to 1.
    """
    return numpy.log((target.lengths + SHORT / 2) / (source.lengths + SHORT / 2))


def _information(pairs: list[tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]]) -> NDArray[numpy.float64]:
    """Return the pointwise mutual information between the values of a feature in source and target lines.

    pairs: a list of (source, target): the values of the feature, from 0 to 255, in source lines and in their
        target lines.

    Returns an array (256, 256): entry (i, j) is for value i in the source and value j in the target. The
    entries of rare values are smoothed towards 0.
    """
    joint = numpy.zeros(BYTE * BYTE)
    for source, target in pairs:
        joint += numpy.bincount(source.astype(numpy.int64) * BYTE + target, minlength=BYTE * BYTE)
    table = joint.reshape(BYTE, BYTE)
    expected = numpy.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    return numpy.log((table + 2.0) / (expected + 2.0))


class Shifted(NamedTuple):
    """Consecutive lines that are shifted by one, in two parallel files with the same number of lines.

    source: index, from 0, of the source line that has no translation in the target file.
    target: index, from 0, of the target line that has no translation in the source file.
    lines: number of shifted lines. They lie between the lines `source` and `target`.
    """

    source: int
    target: int
    lines: int


def lines_without_counterpart(source: Features, target: Features) -> list[int]:
    """Return the lines, from 0, of the longer of two files that probably have no counterpart in the other.

    source, target: the features (length, last byte, digits) of all lines of the two files.

    Line i of the shorter file is paired with line i + k of the longer file. The offset k is the number of
    lines without a counterpart before line i + k. Each pair has a score, which is higher if the two lines are
    probably translations (see likeness()). Dynamic programming finds the lines without a counterpart for
    which the sum of the scores is largest.

    Returns [] if this sum is not clearly larger (see CLEAR) than the sum for another assumption: that the
    extra lines are the last lines of the longer file.
    """
    swapped = len(source) > len(target)
    short, long = (target, source) if swapped else (source, target)
    shared, extra = len(short), len(long) - len(short)
    few = extra <= FEW and shared <= MOST
    offsets = list(range(extra + 1)) if few else [0, extra]

    def pair_lines(first: int, last: int, offset: int) -> tuple[Features, Features]:
        one, other = short.part(first, last), long.part(first + offset, last + offset)
        return (other, one) if swapped else (one, other)

    jumps, gain = _aligned(pair_lines, shared, offsets, 3)
    if gain < CLEAR:
        return []
    lines_per_jump = 1 if few else extra
    return [jump + number + more for number, jump in enumerate(jumps) for more in range(lines_per_jump)]


def _aligned(
    pair_lines: Callable[[int, int, int], tuple[Features, Features]],
    shared: int,
    offsets: Sequence[int],
    rounds: int,
) -> tuple[list[int], float]:
    """Find the lines at which the offset between two files changes. See _best_jumps().

    pair_lines: returns the features of the paired lines from index `first` to `last` - 1 with an offset.
    shared: number of lines that are paired.
    offsets: the offset of the first lines, then the offsets to which it changes in turn.
    rounds: how many times the lines are scored; each time, the features of the pairs found before are used.

    Returns the lines and the gain.
    """
    every = {offset: pair_lines(0, shared, offset) for offset in offsets}
    aligned = list(every.values())
    for _ in range(rounds):
        known = dict(zip(every, likeness(aligned, list(every.values())), strict=True))
        scores = [known[offset] for offset in offsets]
        jumps, gain = _best_jumps(scores)
        bounds = [0, *jumps, shared]
        aligned = [
            pair_lines(first, last, offset)
            for offset, first, last in zip(offsets, bounds[:-1], bounds[1:], strict=True)
        ]
    return jumps, gain


def _best_jumps(scores: list[Scores]) -> tuple[list[int], float]:
    """Find the lines at which the offset between two files must increase to make the sum of scores largest.

    With offset k, line i of the shorter file is paired with line i + k of the longer file. There is a list of
    possible offsets, in increasing order. The first lines have the first offset, 0. At each line that is
    found, the offset changes to the next offset of the list.

    scores: one array for each possible offset: the score of each line of the shorter file if it is paired
        with this offset.

    Returns the indices in the shorter file of the lines that were found, and the gain. The gain is the sum of
    the scores, minus the sum of the scores if all lines had offset 0.
    """
    sums = [numpy.concatenate(([0.0], numpy.cumsum(each, dtype=numpy.float64))) for each in scores]
    best, gains = sums[0], []
    for each in sums[1:]:
        gains.append(best - each)
        best = each + numpy.maximum.accumulate(gains[-1])
    jumps = [len(best) - 1]
    for before in reversed(gains):
        jumps.insert(0, int(numpy.argmax(before[: jumps[0] + 1])))
    jumps.pop()
    return jumps, float(best[-1] - sums[0][-1])


def shifted_lines(source: Features, target: Features) -> Shifted | None:
    """Find consecutive lines of two parallel files that are shifted by one line.

    One line is missing in each file, at different places. So the line counts are equal, and the lines between
    the two places are shifted.

    source, target: the features of all lines: length, last byte (usually final punctuation) and digits.

    Returns None if there are no shifted lines.
    """
    source, target = source.part(0, MOST), target.part(0, MOST)
    count = len(source) - 1
    if count < 1:
        return None

    def pair_lines(first: int, last: int, offset: int) -> tuple[Features, Features]:
        before, after = max(-offset, 0), max(offset, 0)
        return source.part(first + before, last + before), target.part(first + after, last + after)

    best, shifted = 10.0 + 2.0 * math.log(count + 1), None
    for offset in (1, -1):
        (first, last), gain = _aligned(pair_lines, count, [0, offset, 0], 2)
        if gain > best:
            places = (last, first) if offset > 0 else (first, last)
            best, shifted = gain, Shifted(*places, last - first)
    return shifted


def counts_differ(
    difference: CountsDiffer, source: Features, target: Features, most: int
) -> tuple[tuple[int, int], DataError]:
    """Return the two line counts of parallel files, and the error, which names lines without a counterpart.

    difference: the exception that the reader raised at the end of the shorter file.
    source, target: the features (length, last byte, digits) of the lines that were read before the exception.
    most: approximate maximum number of lines of a file that is searched.
    """
    shared, longer = difference.shared, difference.longer
    parts, more = list[Features](), 0
    for block in difference.rest:
        if more < most:
            parts.append(features_of(block))
        more += len(block)
    counts = (shared, shared + more) if longer else (shared + more, shared)
    sides = [features.part(max(len(features) - shared, 0)) for features in (source, target)]
    sides[longer] = Features.joined((sides[longer], *parts))
    complete = (len(sides[0]), len(sides[1])) == counts
    names = [shown(path) for path in difference.paths]
    lines = [f"line counts differ: source and target have {counts[0]:,} and {counts[1]:,} lines"]
    missing = lines_without_counterpart(sides[0], sides[1]) if complete else []
    if not complete and most < MOST_FEATURES:
        hint = "regard data check locates the extra lines"
    elif not complete:
        hint = f"split the files: extra lines are located only in files of up to {MOST_FEATURES:,} lines"
    elif not missing:
        hint = "pass two parallel files: line i of one is the translation of line i of the other"
        if _look_parallel(sides[0].part(0, shared), sides[1].part(0, shared)):
            hint = f"check the end of {names[1 - longer]}: the first {shared:,} lines look parallel"
    else:
        for line in missing[:NAMED]:
            lines.append(
                f"line {line + 1:,} of {names[longer]} seems to have no counterpart in {names[1 - longer]}:"
            )
            text = _lines(difference.paths[longer], line, line + 1, difference.encoding)
            lines.append(f"  {printable(''.join(text))[:60]}")
        more = len(missing) - NAMED
        lines += [f"and {more:,} more lines of {names[longer]}"] if more > 0 else []
        hint = "compare the files near this line: a line is missing, or one line was split in two"
    return counts, DataError(message(" and ".join(names), "\n".join(lines), hint=hint))


def _look_parallel(source: Features, target: Features) -> bool:
    """Return whether the line lengths of two files are correlated, as in parallel files; see PARALLEL.

    source, target: the features (length, last byte, digits) of the lines, the same number of lines in each.
    """
    count = len(source)
    if count < FEWEST:
        return False
    ratios = length_ratios(source, target)
    order = numpy.random.default_rng(0).permutation(count)
    shuffled = length_ratios(source, Features(target.lengths[order], target.marks, target.digits))
    own, other = (float(numpy.abs(each - numpy.median(each)).mean()) for each in (ratios, shuffled))
    return own < PARALLEL * other


def _lines(path: Path, first: int, last: int, encoding: str | None) -> list[str]:
    """Return the lines of a file from index `first` to `last` - 1. Invalid bytes are replaced."""
    lines = (line for raw in read_blocks(path, encoding) for line in raw.text.split("\n"))
    return [to_bytes(line).decode("utf-8", "replace") for line in itertools.islice(lines, first, last)]
