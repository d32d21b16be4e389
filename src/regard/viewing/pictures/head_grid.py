"""heads(): draw a row for each site (attention layer), with a small matrix (thumbnail) for each head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import QUIET, label, shades
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.seen import Site
from regard.viewing.terminal import Drawing, legend_line
from regard.viewing.terminal_colors import Shades, ramp

__all__ = ["heads", "pooled_down"]

SIDE, GAP = 66.0, 8.0
"""SIDE: length of the longer side of a thumbnail. GAP: distance between thumbnails. Both are in points."""

FINE = 96
"""Maximum number of cells along a side of a thumbnail. Larger matrices are reduced by max-pooling."""

CELLS = 3000
"""If all thumbnails together have more cells than this, they are drawn as images instead of boxes."""


def heads(sites: Sequence[Site], title: str = "", about: str = "") -> Picture:
    """Draw every head of every site as a small matrix, all with the same colour scale.

    sites: the attention layers. Each layer is one row of the picture.
    title: a title.
    about: a line below the title.

    >>> from regard.viewing import Site, heads
    >>> print(heads([Site("decoder.cross", [[[0.9, 0.1], [0.0, 1.0]]], ["a", "cat"], ["나는", "고양이"])]))
    decoder.cross
    ██
      ██
    0  ░▒▓█ 1
    """
    if not sites:
        raise ArgumentError(message("heads()", "there are no sites to draw"))
    most = max((float(site.weights.max(initial=0.0)) for site in sites), default=0.0) or 1.0
    small = [[pooled_down(weights, FINE, FINE) / most for weights in site.weights] for site in sites]
    canvas = Canvas(label(title, 90) or "Layers and heads")
    many = sum(levels.size for each in small for levels in each) > CELLS
    widest = max(len(each) for each in small)
    across = GAP + max(SIDE * site.weights.shape[2] / max(*site.weights.shape[1:], 1) for site in sites)
    top = 0.0
    for site, thumbnails in zip(sites, small, strict=True):
        # The longer side of the matrix fills the thumbnail. The shorter side follows from the aspect ratio.
        rows, columns = site.weights.shape[1:]
        width, height = (SIDE * size / max(rows, columns, 1) for size in (columns, rows))
        canvas.words(-10, top + height / 2, label(site.name), 9, anchor="end")
        for number, levels in enumerate(thumbnails):
            _thumbnail(canvas, number * across, top, width, height, levels, many)
        top += height + GAP
    for number in range(widest if widest > 1 else 0):
        canvas.words(number * across + (across - GAP) / 2, -9, f"{number}", 8, anchor="middle", color=QUIET)
    if widest > 1:
        canvas.words(-10, -9, "head", 8, anchor="end", color=QUIET)
    canvas.scale(0, top + 8, most)
    canvas.head(label(title, 90), label(about, 110))
    canvas.about = f"{len(sites)} sites, up to {widest} heads; a darker cell is a larger weight"
    return Picture([canvas], _terminal(sites, most, label(title, 90)))


def pooled_down(weights: NDArray[numpy.floating], rows: int, columns: int) -> NDArray[numpy.float64]:
    """Max-pool weights (T, S) to at most `rows` x `columns` blocks.

    >>> import numpy
    >>> pooled_down(numpy.eye(4), 2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    blocks = numpy.asarray(weights, numpy.float64)
    for axis, most in ((0, rows), (1, columns)):
        size = blocks.shape[axis]
        if size > most:
            starts = numpy.arange(most) * size // most
            blocks = numpy.maximum.reduceat(blocks, starts, axis=axis)
    return blocks


def _thumbnail(
    canvas: Canvas,
    x: float,
    y: float,
    width: float,
    height: float,
    levels: NDArray[numpy.float64],
    image: bool,
) -> None:
    if image:
        canvas.raster(x, y, width, height, shades(levels))
    elif levels.size:
        rows, columns = levels.shape
        canvas.cells(x, y, levels, width / columns, height / rows, gap=0.5)


@dataclass(frozen=True, eq=False)
class Thumbnails(Drawing):
    """The weights of the heads of one site (attention layer), side by side in the terminal.

    name: the name of the site, printed above the weights.
    heads: one matrix per head. Each weight is one or two characters wide.
    """

    name: str
    heads: tuple[NDArray[numpy.float64], ...]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        columns = self.heads[0].shape[1]
        widest = max(len(self.heads) * (columns * _across(columns) + 2) - 2, cell_len(self.name))
        return Measurement(min(8, options.max_width), min(widest, options.max_width))

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        yield Text(self.name, "bold")
        rows, columns = self.heads[0].shape
        each = _across(columns)
        per_line = max((width + 2) // (columns * each + 2), 1)
        for first in range(0, len(self.heads), per_line):
            some = self.heads[first : first + per_line]
            if len(self.heads) > 1:
                names = (f"{first + place}".ljust(columns * each + 2) for place in range(len(some)))
                yield Text("".join(names).rstrip(), "dim")
            for row in range(rows):
                line = Text()
                for place, levels in enumerate(some):
                    line.append("  " if place else "")
                    for level in levels[row]:
                        line.append(*_cell(shades, float(level), each))
                yield line


@dataclass(frozen=True, eq=False)
class Scale(Drawing):
    """A line in the terminal that explains the colours of weights, from 0 to `most`, the largest weight."""

    most: float

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        yield legend_line(shades, 0, self.most)


def _across(columns: int) -> int:
    """Return the width of each weight in characters: 2 for a matrix of at most 8 columns, otherwise 1."""
    return 2 if columns * 2 <= 16 else 1


def _cell(shades: Shades, level: float, width: int) -> tuple[str, Style]:
    if shades.colour:
        return " " * width, Style(bgcolor=ramp(level))
    return shades.blocks[round(min(max(level, 0.0), 1.0) * 4)] * width, Style()


def _terminal(sites: Sequence[Site], most: float, title: str) -> RenderableType:
    drawn: list[RenderableType] = [Text(title, "bold")] if title else []
    for site in sites:
        small = tuple(pooled_down(weights, 12, 24) / most for weights in site.weights)
        drawn.append(Thumbnails(label(site.name), small))
        size, cells = site.weights.shape[1:], small[0].shape if small else (0, 0)
        if small and size != cells:
            sizes = f"{size[0]} x {size[1]} weights in {cells[0]} x {cells[1]} cells"
            drawn.append(Text(f"{sizes}; each cell shows the largest weight of a block", "dim"))
    return Group(*drawn, Scale(most))
