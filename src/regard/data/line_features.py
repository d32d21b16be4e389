"""Language-independent features of lines, and how likely two lines are translations of each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.line_scan import Block
from regard.data.pair_checks import SHORT

__all__ = ["MOST_FEATURES", "Features", "features_of", "length_ratios", "likeness"]

MOST_FEATURES = 4_000_000
"""Maximum number of lines whose features are held in memory; longer files are not searched for missing
lines."""

BYTE, DIGITS = 256, 32
"""Number of different values of a byte, and of the feature `digits`."""

Scores = NDArray[numpy.float32]
LinePairs = list[tuple["Features", "Features"]]


class Features(NamedTuple):
    """Features of some lines, one array per feature.

    lengths: length of each line in characters.
    marks: the last byte of each line, usually its final punctuation.
    digits: 0 if the line has no digits, otherwise a hash of the sum of its digits.
    """

    lengths: NDArray[numpy.int32]
    marks: NDArray[numpy.uint8]
    digits: NDArray[numpy.uint8]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, last: int | None = None) -> Features:
        """Return the features of the lines from index `first` to `last` - 1."""
        return Features(self.lengths[first:last], self.marks[first:last], self.digits[first:last])

    @classmethod
    def joined(cls, parts: Iterable[Features]) -> Features:
        """Concatenate the features of several groups of lines."""
        types = (numpy.int32, numpy.uint8, numpy.uint8)
        columns = zip(*parts, strict=True)
        empty = tuple((numpy.zeros(0, kind),) for kind in types)
        return cls(*map(numpy.concatenate, list(columns) or empty))


def features_of(block: Block) -> Features:
    """Compute the features of the lines of a block."""
    data = numpy.frombuffer(block.data, numpy.uint8)
    starts = numpy.concatenate(([0], block.ends[:-1] + 1))
    values = numpy.where((data >= ord("0")) & (data <= ord("9")), data - (ord("0") - 1), numpy.uint8(0))
    sums = numpy.add.reduceat(values, starts, dtype=numpy.int64)
    digits = numpy.where(sums > 0, 1 + sums % (DIGITS - 1), 0).astype(numpy.uint8)
    return Features(block.lengths, data[block.ends - 1], digits)


def likeness(aligned: LinePairs, candidates: LinePairs) -> list[Scores]:
    """Score pairs of lines: how likely is it that two lines are translations of each other?

    The score is a log-likelihood ratio: two lines that are translations, against two random lines.

    aligned: (source, target) features of lines that are mostly translations, to estimate the statistics from.
    candidates: (source, target) features of the lines to score; source and target have the same number.

    The log of the length ratio is assumed to have a Laplace distribution. For each other feature, the score
    adds the pointwise mutual information of its values.
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
    """Return the log of the length ratio of each pair of lines, smoothed for short lines."""
    return numpy.log((target.lengths + SHORT / 2) / (source.lengths + SHORT / 2))


def _information(pairs: list[tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]]) -> NDArray[numpy.float64]:
    """Return the pointwise mutual information of two features, (256, 256), smoothed to 0 for rare values."""
    joint = numpy.zeros(BYTE * BYTE)
    for source, target in pairs:
        joint += numpy.bincount(source.astype(numpy.int64) * BYTE + target, minlength=BYTE * BYTE)
    table = joint.reshape(BYTE, BYTE)
    expected = numpy.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    return numpy.log((table + 2.0) / (expected + 2.0))
