"""Matrices of weights, darker cells for larger weights: matrix(), and hops() over sentences of a story."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from regard.viewing.as_arrays import check_words, checked_matrix, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, QUIET, label, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import draw

__all__ = ["grid", "hops", "matrix", "numbers_of"]

LONG = 48
"""If a matrix has more rows (or columns) than this, the cells are smaller, and labels that do not fit are
left out."""

EDGE = 720.0
"""Height of a matrix with more than LONG rows, and width of a matrix with more than LONG columns, in
points."""

LONGEST = 60
"""Maximum width of a sentence of a story in character cells of the terminal.

Longer sentences are truncated."""

TERMINAL, HOP_CELLS, SHORTEST = 78, 7, 24
"""Sizes in character cells for hops() in the terminal.

TERMINAL: width of the drawing. HOP_CELLS: width of the column of a hop. SHORTEST: minimum width of the
    sentences, even if the drawing becomes wider than TERMINAL."""

LABEL = 28
"""Default maximum width of a label, in terminal cells."""

LEVEL = 620.0
"""Maximum width in points of a matrix with horizontal column labels.

Columns are made wider, so that their labels fit. If the matrix would become wider than LEVEL, the labels are
slanted instead."""


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
    """Draw a matrix of weights, with the queries as row labels and the keys as column labels.

    weights: (T, S).
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.
    numbers: whether to write each weight in its cell.
    most: the weight of the darkest colour. Default: the largest weight.

    >>> from regard.viewing import matrix
    >>> print(matrix([[0.9, 0.1], [0.0, 1.0]], ["I", "cat"], ["나는", "고양이"], most=1))
            나는    고양이
      I   ███████    ·
      cat    ·    ███████
          0  ░▒▓█ 1
    """
    array, darkest = checked_matrix("matrix()", weights, rows, columns, most)
    texts = numbers_of(array) if numbers else ()
    canvas = grid(array / darkest, rows, columns, texts)
    canvas.scale(0, canvas.bounds[3] + 14, darkest)
    canvas.head(label(title, 90), label(about, 110))
    canvas.title = label(title, 90) or "Alignment matrix"
    canvas.about = (
        f"{array.shape[0]} queries down, {array.shape[1]} keys across; darker cells are larger weights"
    )
    return Picture([canvas], draw(array, rows, columns, title or None, numbers=numbers, most=most))


def hops(
    weights: Any,
    sentences: Sequence[object],
    question: str = "",
    answer: str = "",
    title: str = "",
) -> Picture:
    """Draw how much each hop attends to each sentence of a story (Sukhbaatar et al. 2015).

    weights: (K, S), the weights of K hops for S sentences.
    sentences: the S sentences of the story.
    question: the question about the story, written above the matrix.
    answer: the answer of the model, written below the matrix.
    title: a title.

    >>> from regard.viewing import hops
    >>> print(hops([[0.1, 0.9], [0.8, 0.2]], ["Mary took the milk", "Mary went home"], "where is the milk?"))
    where is the milk?
                        hop 1  hop 2
    Mary took the milk  .10    .80 ▓
        Mary went home  .90 █  .20 ░
                       0  ░▒▓█ 1
    """
    array, most = checked_weights("hops()", weights, "TS", None)
    check_words("hops()", "sentences", sentences, array, axis=1)
    names = [f"hop {number}" for number in range(1, len(array) + 1)]
    labels = [label(each, LONGEST) for each in sentences]
    canvas = grid(array.T / most, labels, names, numbers_of(array.T), longest=LONGEST)
    canvas.title = label(title or question, 90) or "Hops over a story"
    below = [f"answer: {label(answer, LONGEST)}"] if answer else []
    for line in below:
        canvas.words(canvas.bounds[0], canvas.bounds[3] + 14, line)
    canvas.head(label(title, 90), label(question, 100))
    room = max(TERMINAL - HOP_CELLS * len(names), SHORTEST)
    drawn = draw(array.T, labels, names, question or title or None, numbers=True, longest_row=room)
    return Picture([canvas], Group(drawn, *map(Text, below)))


def grid(
    levels: NDArray[numpy.floating],
    rows: Sequence[object],
    columns: Sequence[object],
    texts: Sequence[Sequence[str]] = (),
    *,
    least: float = 30.0,
    longest: int = LABEL,
) -> Canvas:
    """Return a canvas with the cells and labels of a matrix. The top left corner of the cells is at (0, 0).

    levels: (T, S), the weights divided by the weight of the darkest colour.
    rows, columns: the labels of the rows and of the columns, or none of them.
    texts: the text in each cell. Default: no texts.
    least: the smallest width of a cell with a text, in points.
    longest: maximum width of the label of a row, in terminal cells.
    """
    canvas, count = Canvas(), levels.shape[1]
    beside, above = [label(word, longest) for word in rows], [label(word) for word in columns]
    widest = max((width_of(word, SIZE) for word in above), default=0.0)
    least = least if len(texts) else 0.0
    height, width = _cell(len(levels)), max(_cell(count), least)
    level = widest <= width - 4
    if not level and count <= LONG:
        needed = max(widest + 8, least)
        level = needed <= 64 and needed * count <= LEVEL
        width = needed if level else width
    width = round(width) if width > 6 else width
    canvas.cells(0, 0, levels, width, height, texts=texts)
    _beside(canvas, beside, height)
    _above(canvas, above, width, level)
    return canvas


def numbers_of(weights: NDArray[numpy.floating]) -> list[list[str]]:
    """Return the weights as the texts of cells: two digits, and nothing for a weight below 0.005."""
    return [[f"{each:.2f}".removeprefix("0") if each >= 0.005 else "" for each in row] for row in weights]


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
    """Return the size of a cell in points: its height for `count` rows, or its width for `count` columns."""
    return 18.0 if count <= LONG else max(float(int(EDGE / count)), EDGE / count)


def _step(size: float) -> int:
    """Return the number n for which the label of every n-th cell fits. size: size of a cell in points."""
    return 1 if size >= 9 else int(numpy.ceil(11 / size))
