"""Features of lines that tell, without knowing the languages, whether two lines may be translations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.line_scan import Block
from regard.data.pair_checks import SHORT

__all__ = ["MOST_FEATURES", "Features", "features_of", "likeness"]

MOST_FEATURES = 4_000_000
"""Lines whose features are kept; in longer files, no line is looked for that has no counterpart."""

BYTE, DIGITS = 256, 32
"""How many values a byte has, and how many of them are used for digits."""

Scores = NDArray[numpy.float32]
Alike = list[tuple["Features", "Features"]]


class Features(NamedTuple):
    """Features of some lines, an array each. lengths: in characters. marks: the last byte, which is the final
    mark of punctuation. digits: 0 without any digit, otherwise a number that depends on the sum of them."""

    lengths: NDArray[numpy.int32]
    marks: NDArray[numpy.uint8]
    digits: NDArray[numpy.uint8]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, last: int | None = None) -> Features:
        """Those of the lines from first on, before last."""
        return Features(self.lengths[first:last], self.marks[first:last], self.digits[first:last])

    @classmethod
    def joined(cls, parts: Iterable[Features]) -> Features:
        """Those of several runs of lines, one after another."""
        types = (numpy.int32, numpy.uint8, numpy.uint8)
        columns = zip(*parts, strict=True)
        empty = tuple((numpy.zeros(0, kind),) for kind in types)
        return cls(*map(numpy.concatenate, list(columns) or empty))


def features_of(block: Block) -> Features:
    """The features of the lines of a block."""
    data = numpy.frombuffer(block.data, numpy.uint8)
    starts = numpy.concatenate(([0], block.ends[:-1] + 1))
    values = numpy.where((data >= ord("0")) & (data <= ord("9")), data - (ord("0") - 1), numpy.uint8(0))
    sums = numpy.add.reduceat(values, starts, dtype=numpy.int64)
    digits = numpy.where(sums > 0, 1 + sums % (DIGITS - 1), 0).astype(numpy.uint8)
    return Features(block.lengths, data[block.ends - 1], digits)


def likeness(known: Alike, wanted: Alike) -> list[Scores]:
    """How much more likely each pair of lines is a translation than two lines at random, as a logarithm.

    known: lines that are mostly translations, to learn from. wanted: (source, target) of the same number of
    lines each. The logarithm of the ratio of lengths is taken to be Laplace distributed; of the other
    features, it is the pointwise mutual information.
    """
    ratios = numpy.concatenate([_ratios(*pair) for pair in known])
    usual = float(numpy.median(ratios)) if len(ratios) else 0.0
    # The pairs that fit worse than most are the wrong ones.
    spread = max(float(numpy.median(numpy.abs(ratios - usual))), 0.05) if len(ratios) else 1.0
    tables = (
        _information([(source.marks, target.marks) for source, target in known]),
        _information([(source.digits, target.digits) for source, target in known]),
    )
    found = []
    for source, target in wanted:
        score = -numpy.minimum(numpy.abs(_ratios(source, target) - usual) / spread, 6.0)
        score += tables[0][source.marks, target.marks] + tables[1][source.digits, target.digits]
        found.append(score.astype(numpy.float32))
    return found


def _ratios(source: Features, target: Features) -> NDArray[numpy.float64]:
    return numpy.log((target.lengths + SHORT / 2) / (source.lengths + SHORT / 2))


def _information(pairs: list[tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]]) -> NDArray[numpy.float64]:
    """The pointwise mutual information of the values of two features, (256, 256), near 0 for what is rare."""
    joint = numpy.zeros(BYTE * BYTE)
    for source, target in pairs:
        joint += numpy.bincount(source.astype(numpy.int64) * BYTE + target, minlength=BYTE * BYTE)
    table = joint.reshape(BYTE, BYTE)
    expected = numpy.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    return numpy.log((table + 2.0) / (expected + 2.0))
