"""Estimate whether two lines are translations of each other, from their lengths, punctuation and digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.line_scan import Block
from regard.data.pair_checks import SHORT

__all__ = ["MOST_FEATURES", "Features", "features_of", "length_ratios", "likeness"]

MOST_FEATURES = 4_000_000
"""Approximate maximum number of lines of a file whose features (length, last byte, digits) are in memory.

If two parallel files have different line counts, the features of all lines are needed to find the lines
without a translation. In files with more lines than this number, there is no search for such lines."""

BYTE, DIGITS = 256, 32
"""BYTE: number of different values of a byte.
DIGITS: number of different values of Features.digits."""

Scores = NDArray[numpy.float32]
LinePairs = list[tuple["Features", "Features"]]


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
    data = numpy.frombuffer(block.data, numpy.uint8)
    starts = numpy.concatenate(([0], block.ends[:-1] + 1))
    values = numpy.where((data >= ord("0")) & (data <= ord("9")), data - (ord("0") - 1), numpy.uint8(0))
    sums = numpy.add.reduceat(values, starts, dtype=numpy.int64)
    digits = numpy.where(sums > 0, 1 + sums % (DIGITS - 1), 0).astype(numpy.uint8)
    return Features(block.lengths, data[block.ends - 1], digits)


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
