"""heads(): draw a row for each site (attention layer), with a small matrix (thumbnail) for each head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import QUIET, label, shades
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.seen import Site
from regard.viewing.terminal import Legend, Thumbnails, pooled_down

__all__ = ["heads"]

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


def _terminal(sites: Sequence[Site], most: float, title: str) -> RenderableType:
    drawn: list[RenderableType] = [Text(title, "bold")] if title else []
    for site in sites:
        small = tuple(pooled_down(weights, 12, 24) / most for weights in site.weights)
        drawn.append(Thumbnails(label(site.name), small))
        size, cells = site.weights.shape[1:], small[0].shape if small else (0, 0)
        if small and size != cells:
            sizes = f"{size[0]} x {size[1]} weights in {cells[0]} x {cells[1]} cells"
            drawn.append(Text(f"{sizes}; each cell shows the largest weight of a block", "dim"))
    return Group(*drawn, Legend(most))
