"""Out of step: where two files stop being parallel, guessed from the lengths of their lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy
from numpy.typing import NDArray

from regard.data.choices import SHORT
from regard.data.origins import CountsDiffer
from regard.data.reading import UTF_16, printable, read_blocks, shown
from regard.errors import DataError, message

__all__ = ["counts_differ", "out_of_step"]

CLEAR = 3.0
"""How much better lengths must fit one way than the other, as a sum of logarithms, to be no accident."""

Lengths = NDArray[numpy.int32]


def out_of_step(source: Lengths, target: Lengths) -> int | None:
    """The first pair, from 0 on, that looks wrong; None where all do well, and one side just ends early.

    source, target: how long each line is; the lines that one side has too many are taken to stand in one
    place. Up to there lines fit those with their own number, from there on those that many lines further
    down. The place is where the sum of the misfits is least: |log(length / other length) - its median|.

    >>> import numpy
    >>> lengths = numpy.array([5, 80, 20, 160, 40, 10, 90, 30])
    >>> out_of_step(lengths, numpy.delete(lengths, 3))
    3
    """
    short, long = sorted((source, target), key=len)
    shared, extra = len(short), len(long) - len(short)
    one, other = (numpy.log(lengths + SHORT / 2) for lengths in (short, long))
    usual = numpy.median(other[:shared] - one) if shared else 0.0
    own = numpy.abs(other[:shared] - one - usual)
    further = numpy.abs(other[extra:] - one - usual)
    misfit = numpy.concatenate(([0.0], numpy.cumsum(own - further)))
    best = int(numpy.argmin(misfit))
    return best if misfit[-1] - misfit[best] >= CLEAR else None


def counts_differ(difference: CountsDiffer, source: Lengths, target: Lengths) -> DataError:
    """The error for two files with different numbers of lines, with the first pair that looks wrong.

    source, target: how long the lines are that were read before the shorter file ended.
    """
    counts, shared = difference.counts, min(difference.counts)
    sides = [lengths[len(lengths) - shared :] for lengths in (source, target)]
    longer = int(counts[1] > counts[0])
    sides[longer] = numpy.concatenate((sides[longer], difference.rest))
    names = [shown(path) for path in difference.paths]
    width = max(map(len, names))
    lines = [f"{counts[0]:,} lines against {counts[1]:,}, so they are not parallel"]
    if (wrong := out_of_step(sides[0], sides[1])) is None:
        hint = f"each pair looks right as far as {names[1 - longer]} goes: is its end missing?"
    else:
        lines.append(f"the first pair whose lengths look wrong is at line {wrong + 1:,} or near it:")
        for name, path in zip(names, difference.paths, strict=True):
            lines.append(f"  {name.ljust(width)}  {_line(path, wrong)}")
        hint = "compare the files around there: a line is missing, or one is broken in two"
    if any(b"\0" in raw.data for path in difference.paths for raw in itertools.islice(read_blocks(path), 1)):
        hint = f"{UTF_16}; if not, {hint}"
    return DataError(message(" and ".join(names), "\n".join(lines), hint=hint))


def _line(path: Path, index: int) -> str:
    """The beginning of a line of a file, to be shown."""
    for raw in read_blocks(path):
        lines = raw.data.split(b"\n")[:-1]
        if index < len(lines):
            return printable(lines[index][:240].decode("utf-8", "replace"))[:60]
        index -= len(lines)
    return ""
