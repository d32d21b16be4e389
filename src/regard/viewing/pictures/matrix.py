"""The alignment matrix: queries down the side, keys across, a shade for how much was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.viewing.as_arrays import check_words, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, QUIET, text_color_on, label, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import draw

__all__ = ["grid", "matrix"]

LONG = 48
"""More words than these make the cells smaller; words that do not fit beside them any more are left out."""

EDGE = 720.0
"""The points that such a side is given."""

LEVEL = 620.0
"""Words stand level above their columns where all of them fit into these points, and else slanted."""


def matrix(
    weights: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str = "",
    about: str = "",
    *,
    numbers: bool = False,
    most: float | None = None,
) -> Picture:
    """Draw a matrix of weights, (T, S), the words of the queries beside it and those of the keys above.

    about: a quiet line under the title. numbers: whether each cell says its weight. most: the weight that is
    drawn darkest, the largest unless given.

    >>> from regard.viewing import matrix
    >>> print(matrix([[0.9, 0.1], [0.0, 1.0]], ["I", "cat"], ["나는", "고양이"], most=1))
            나는    고양이
      I   ███████    ·
      cat    ·    ███████
          0  ░▒▓█ 1
    """
    array, darkest = checked_weights("matrix()", weights, "TS", most)
    check_words("matrix()", "rows", rows, array, axis=0)
    check_words("matrix()", "columns", columns, array, axis=1)
    canvas = grid(array, rows, columns, darkest, numbers)
    canvas.scale(0, canvas.bounds[3] + 14, darkest)
    canvas.head(label(title, 90), label(about, 110))
    canvas.title = label(title, 90) or "An alignment matrix"
    canvas.about = (
        f"{array.shape[0]} queries down, {array.shape[1]} keys across; darker cells are larger weights"
    )
    return Picture([canvas], draw(array, rows, columns, title or None, numbers=numbers, most=most))


def grid(
    weights: NDArray[numpy.floating],
    rows: Sequence[object],
    columns: Sequence[object],
    most: float,
    numbers: bool = False,
) -> Canvas:
    """The cells of a matrix, the first at 0, 0, and their words."""
    canvas, levels = Canvas(), weights / most
    beside, above = [label(word) for word in rows], [label(word) for word in columns]
    widest = max((width_of(word, SIZE) for word in above), default=0.0)
    height, width = _cell(len(beside)), _cell(len(above))
    level = widest <= width - 4
    if not level and len(above) <= LONG:
        least = max(widest + 8, 30 if numbers else 0)
        level = least <= 64 and least * len(above) <= LEVEL
        width = least if level else 30 if numbers else width
    width = round(width) if width > 6 else width
    canvas.cells(0, 0, levels, width, height)
    if numbers:
        for row, column in numpy.ndindex(*weights.shape):
            if weights[row, column] >= 0.005:
                centre = (column + 0.5) * width - 0.5, (row + 0.5) * height - 0.5
                said = f"{weights[row, column]:.2f}".removeprefix("0")
                canvas.words(*centre, said, 8, anchor="middle", color=text_color_on(float(levels[row, column])))
    _beside(canvas, beside, height)
    _above(canvas, above, width, level)
    return canvas


def _beside(canvas: Canvas, words: Sequence[str], height: float) -> None:
    step = _step(height)
    size = min(SIZE, step * height - 1)
    for row in range(0, len(words), step):
        color = DARK if step == 1 else QUIET
        canvas.words(-6, (row + 0.5) * height - 0.5, words[row], size, anchor="end", color=color)


def _above(canvas: Canvas, words: Sequence[str], width: float, level: bool) -> None:
    step = _step(width)
    size = min(SIZE, step * width - 1)
    for column in range(0, len(words), step):
        middle, color = (column + 0.5) * width - 0.5, DARK if step == 1 else QUIET
        if level:
            canvas.words(middle, -10, words[column], size, anchor="middle", color=color)
        else:
            canvas.words(middle, -6, words[column], size, angle=50, color=color)


def _cell(count: int) -> float:
    """How large a cell is where there are so many of them."""
    return 18.0 if count <= LONG else max(float(int(EDGE / count)), EDGE / count)


def _step(size: float) -> int:
    """Every how many-th word is written beside cells of this size."""
    return 1 if size >= 9 else int(numpy.ceil(11 / size))
