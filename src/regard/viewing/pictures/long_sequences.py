"""long_map(): draw the attention of a long sequence. Each cell is a block of the weight matrix."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import QUIET, label, shades
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pooled_attention import Pooled, block_side
from regard.viewing.terminal import Thumbnails, pooled_down

__all__ = ["long_map"]

SIDE = 512.0
"""Width and height of the picture without its labels, in points."""

SHARE = "share of attention"

TICKS = 8
"""Approximate number of position labels along each side."""


def long_map(seen: Pooled, title: str = "", about: str = "", *, head: int | None = None) -> Picture:
    """Draw the attention of a long sequence. The weight matrix is divided into rectangular blocks.

    Each block is drawn as one cell. The colour of the cell shows the largest weight of the block. If only the
    means of the blocks are exact (seen.exact_means), it shows the share of the block in the attention of its
    queries: the sum of its weights, divided by its number of queries.

    seen: a Pooled, the result of `pooled` or `pooled_from_top`.
    title: a title.
    about: a line below the title.
    head: index of one head. Default: the maximum over heads; for shares, the mean over heads.

    >>> import numpy
    >>> from regard.viewing import long_map
    >>> from regard.viewing import pooled
    >>> words = [f"w{place}" for place in range(1000)]
    >>> picture = long_map(pooled("self", numpy.eye(1000), words, words))
    >>> len(picture.svg()) < 20_000  # for a million weights
    True
    """
    if head is not None and not 0 <= head < seen.heads:
        problem = f"{seen.name} has no head {head}"
        raise ArgumentError(message("long_map()", problem, expected=f"0 to {seen.heads - 1}"))
    rows, columns = len(seen.rows), len(seen.columns)
    cells, cell_name = _cells(seen, head)
    largest = float(cells.max(initial=0.0)) or 1.0
    most = _darkest(cells) if cell_name == SHARE else largest
    longest = max(rows, columns)
    width, height = SIDE * columns / longest, SIDE * rows / longest
    canvas = Canvas(label(title or seen.name, 90))
    canvas.box(-1, -1, width + 2, height + 2, "#ffffff", edge="#dfe2e8")
    canvas.raster(0, 0, width, height, shades(cells / most))
    for count, across in ((columns, True), (rows, False)):
        for place in _ticks(count):
            at = SIDE * (place + 0.5) / longest
            if across:
                canvas.words(at, -9, f"{place:,}", 8, anchor="middle", color=QUIET)
            else:
                canvas.words(-7, at, f"{place:,}", 8, anchor="end", color=QUIET)
    canvas.scale(0, height + 14, most, more=most < largest)
    block = f"{block_side(rows)} by {block_side(columns)}"
    description = f"{rows:,} by {columns:,} tokens; each cell shows the {cell_name} of {block} tokens"
    description += "" if seen.whole or seen.exact_means else ", from the largest weights of each row"
    which = f"head {head}" if head is not None else f"{seen.heads} heads" if seen.heads > 1 else ""
    canvas.head(
        label(title or seen.name, 90), label(about, 110), " · ".join(filter(None, (description, which)))
    )
    canvas.about = description
    small = (pooled_down(cells, 24, 64) / most,)
    return Picture([canvas], Thumbnails(label(title or seen.name, 60), small))


def _cells(seen: Pooled, head: int | None) -> tuple[NDArray[numpy.floating[Any]], str]:
    """Return the values of the cells of a map, (t, s), and the name of what they show.

    head: index of one head; None for the maximum or the mean over heads.
    """
    if seen.exact_means and not seen.whole:
        means = seen.means.mean(0) if head is None else seen.means[head]
        columns = len(seen.columns)
        ends = numpy.minimum(numpy.arange(1, means.shape[1] + 1) * block_side(columns), columns)
        return means * numpy.diff(ends, prepend=0), SHARE
    return seen.maxima.max(0) if head is None else seen.maxima[head], "largest weight"


def _darkest(shares: NDArray[numpy.floating[Any]]) -> float:
    """Return the share that gets the darkest colour: larger than 99 % of the shares that are not 0.

    With a causal mask, the first block has the share 1, because its queries see no other block. Compared with
    it, all other blocks would be pale.
    """
    positive = shares[shares > 0]
    return float(numpy.quantile(positive, 0.99)) if positive.size else 1.0


def _ticks(count: int) -> list[int]:
    """Return the positions of the tokens with a label: 0 and the multiples of a round number.

    count: the number of tokens.
    """
    rough = max(count / TICKS, 1)
    power = 10.0 ** numpy.floor(numpy.log10(rough))
    step = int(next(power * each for each in (1, 2, 5, 10) if power * each >= rough))
    return list(range(0, count, max(step, 1)))
