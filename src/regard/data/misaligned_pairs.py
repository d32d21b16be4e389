"""Misaligned pairs: find lines of a parallel file that probably have no translation in the other file."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy

from regard.data.line_features import MOST_FEATURES, Features, Scores, length_ratios, likeness
from regard.data.pair_formats import CountsDiffer
from regard.data.read_text import read_blocks
from regard.errors import DataError, message, printable, shown

__all__ = ["Missing", "Shifted", "counts_differ", "lines_without_counterpart", "shifted_lines"]

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

NEAR, FAR = 500, 150
"""Two distances, in lines, from the line that is suspected to have no counterpart in the other file.

NEAR: word translations are learned from the lines up to this distance before and after the suspected line.
FAR: the line without a counterpart is searched for up to this distance from the suspected line."""

NAMED = 3
"""Maximum number of lines without a counterpart that the error message lists."""

FEWEST, PARALLEL = 20, 0.8
"""Two files look parallel if both have at least FEWEST lines and their line lengths are correlated.

To test the correlation, the length ratio of source line i and target line i is computed for all i. Then the
target lines are shuffled, and the ratios are computed again. The first ratios must vary less: their spread
divided by the spread of the second ratios must be below PARALLEL."""


Words = frozenset[str]


class Shifted(NamedTuple):
    """Consecutive lines that are shifted by one, in two parallel files with the same number of lines.

    source: index, from 0, of the source line that has no translation in the target file.
    target: index, from 0, of the target line that has no translation in the source file.
    lines: number of shifted lines. They lie between the lines `source` and `target`.
    """

    source: int
    target: int
    lines: int


class Missing(NamedTuple):
    """A line of the longer of two parallel files that probably has no translation in the shorter file.

    line: index of this line, from 0.
    gains: one number for each line i of the shorter file. If the number is positive, `line` probably comes
        after the translation of line i; if it is negative, before the translation. In the second case, line i
        is paired with a later line than in the first case. The number is the score of the pair in the first
        case, minus the score of the pair in the second case.
    """

    line: int
    gains: Scores


def lines_without_counterpart(source: Features, target: Features) -> list[Missing]:
    """Return the lines of the longer of two parallel files that probably have no counterpart in the other.

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

    every = [pair_lines(0, shared, offset) for offset in offsets]
    aligned, jumps = every, [shared] * (len(offsets) - 1)
    for _ in range(3):
        scores = likeness(aligned, every)
        jumps, gain = _best_jumps(scores)
        bounds = [0, *jumps, shared]
        aligned = [
            pair_lines(first, last, offset)
            for offset, first, last in zip(offsets, bounds[:-1], bounds[1:], strict=True)
        ]
    if gain < CLEAR:
        return []
    lines_per_jump = 1 if few else extra
    return [
        Missing(jump + number + more, scores[number] - scores[number + 1])
        for number, jump in enumerate(jumps)
        for more in range(lines_per_jump)
    ]


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
    own = (source.part(0, count), target.part(0, count))
    best, shifted = 10.0 + 2.0 * math.log(count + 1), None
    for forward in (True, False):
        moved = (
            (source.part(0, count), target.part(1, count + 1))
            if forward
            else (source.part(1, count + 1), target.part(0, count))
        )
        aligned = [own, moved]
        for _ in range(2):
            plain, other = likeness(aligned, [own, moved])
            sums = numpy.concatenate(([0.0], numpy.cumsum(other - plain, dtype=numpy.float64)))
            gains = sums - numpy.minimum.accumulate(sums)
            last = int(numpy.argmax(gains))
            first = int(numpy.argmin(sums[: last + 1]))
            before, after = ((own[0].part(*at), own[1].part(*at)) for at in ((0, first), (last + 1, None)))
            aligned = [before, (moved[0].part(first, last), moved[1].part(first, last)), after]
        if gains[last] > best:
            best = float(gains[last])
            shifted = Shifted(last, first, last - first) if forward else Shifted(first, last, last - first)
    return shifted


def counts_differ(difference: CountsDiffer, source: Features, target: Features) -> DataError:
    """Return the error for parallel files with different line counts; it names lines without a counterpart.

    difference: the exception that the reader raised at the end of the shorter file.
    source, target: the features (length, last byte, digits) of the lines that were read before the exception.
    """
    counts, shared = difference.counts, min(difference.counts)
    sides = [features.part(max(len(features) - shared, 0)) for features in (source, target)]
    longer = int(counts[1] > counts[0])
    sides[longer] = Features.joined((sides[longer], difference.rest))
    complete = (len(sides[0]), len(sides[1])) == counts
    names = [shown(path) for path in difference.paths]
    lines = [f"line counts differ: source and target have {counts[0]:,} and {counts[1]:,} lines"]
    missing = lines_without_counterpart(sides[0], sides[1]) if complete else []
    if 0 < abs(counts[1] - counts[0]) <= FEW:
        short, long = difference.paths[1 - longer], difference.paths[longer]
        encoding = difference.encoding
        unmatched = [_by_words(short, long, each, number, encoding) for number, each in enumerate(missing)]
    else:
        unmatched = [each.line for each in missing]
    if not complete:
        hint = f"split the files: extra lines are located only in files of up to {MOST_FEATURES:,} lines"
    elif not missing:
        hint = "pass two parallel files: line i of one is the translation of line i of the other"
        if _look_parallel(sides[0].part(0, shared), sides[1].part(0, shared)):
            hint = f"check the end of {names[1 - longer]}: the first {shared:,} lines look parallel"
    else:
        for line in unmatched[:NAMED]:
            lines.append(
                f"line {line + 1:,} of {names[longer]} seems to have no counterpart in {names[1 - longer]}:"
            )
            lines.append(f"  {_line(difference.paths[longer], line, difference.encoding)}")
        more = len(unmatched) - NAMED
        lines += [f"and {more:,} more lines of {names[longer]}"] if more > 0 else []
        hint = "compare the files near this line: a line is missing, or one line was split in two"
    return DataError(message(" and ".join(names), "\n".join(lines), hint=hint))


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


def _by_words(short: Path, long: Path, missing: Missing, offset: int, encoding: str | None) -> int:
    """Return the exact index of a line without a counterpart in the longer of two parallel files.

    short, long: the shorter file and the longer file.
    missing: the line, found by length, final punctuation and digits. Its index is only approximate, because
        neighbouring lines often have the same length and punctuation, especially in sorted files. This
        function also compares words; it learns word translations from the lines near `missing`.
    offset: number of lines without a counterpart before this line.
    encoding: the encoding of the files; None is UTF-8.
    """
    jump = missing.line - offset
    first = max(jump - NEAR, 0)
    ours = [frozenset(line.split()) for line in _lines(short, first, jump + NEAR, encoding)]
    last = jump + NEAR + offset + 1
    theirs = [frozenset(line.split()) for line in _lines(long, first + offset, last, encoding)]
    count = min(len(ours), len(theirs) - 1)
    place = begun = jump - first
    least, most = max(begun - FAR, 0), begun + FAR
    for _ in range(3):
        similarity = _Dictionary(ours[:count], theirs[: count + 1], place)
        by_words = [similarity(i, i) - similarity(i, i + 1) for i in range(count)]
        gains = numpy.array(by_words) + missing.gains[first : first + count]
        sums = numpy.concatenate(([0.0], numpy.cumsum(gains)))
        place = least + int(numpy.argmax(sums[least : most + 1]))
    return first + place + offset


class _Dictionary:
    """Scores how well a source line and a target line match, by word translations.

    The translations are learned from the words that occur together in paired lines. There is one more target
    line than source lines.

    source, target: the lines, each as a set of words.
    place: index of the target line without a counterpart. Source line i is paired with target line i if
        i < place, otherwise with target line i + 1.
    """

    def __init__(self, source: list[Words], target: list[Words], place: int):
        self.source, self.target, self.place = source, target, place
        pairs = [(words, target[self.partner(i)]) for i, words in enumerate(source)]
        self.ours = Counter(word for words, _ in pairs for word in words)
        self.theirs = Counter(word for _, words in pairs for word in words)
        self.both = Counter((a, b) for one, other in pairs for a in one for b in other)

    def partner(self, line: int) -> int:
        """Return the index of the target line that is paired with the source line of index `line`."""
        return line + (line >= self.place)

    def __call__(self, i: int, j: int) -> float:
        """Return how well source line i and target line j match.

        Each word has the score of its best translation in the other line. The result is the mean word score
        of line i plus the mean word score of line j. The counts of words that occur together do not include
        lines i and j, because the pair would increase its own score.
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


def _lines(path: Path, first: int, last: int, encoding: str | None) -> list[str]:
    """Return the lines of a file from index `first` to `last` - 1, in lower case."""
    raws = (line for raw in read_blocks(path, encoding) for line in raw.data.split(b"\n")[:-1])
    return [line.decode("utf-8", "replace").lower() for line in itertools.islice(raws, first, last)]


def _line(path: Path, index: int, encoding: str | None) -> str:
    """Return the first 60 characters of the line at this index of a file, for messages.

    Control characters are replaced.
    """
    raws = (line for raw in read_blocks(path, encoding) for line in raw.data.split(b"\n")[:-1])
    line = next(itertools.islice(raws, index, None), b"")
    return printable(line[:240].decode("utf-8", "replace"))[:60]
