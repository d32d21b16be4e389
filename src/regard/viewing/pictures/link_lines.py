"""lines(): draw two columns of words, joined by lines. The width of a line shows the weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.viewing.as_arrays import checked_matrix
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import LINK, label
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import Drawing
from regard.viewing.terminal_colors import Shades, ramp

__all__ = ["lines"]

STEP, ACROSS = 18.0, 130.0
"""STEP: distance between words. ACROSS: distance between the two columns. Both in points."""

FAINTEST = 0.05
"""Weights below this fraction of the largest weight have no line."""

KEYS_SHOWN = 4
"""Maximum number of keys that are printed for each query in the terminal."""


def lines(
    weights: Any, rows: Sequence[object], columns: Sequence[object], title: str = "", about: str = ""
) -> Picture:
    """Draw keys on the left and queries on the right, joined by lines. The width of a line shows the weight.

    weights: (T, S).
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.

    >>> from regard.viewing import lines
    >>> print(lines([[0.9, 0.1], [0.0, 1.0]], ["a", "cat"], ["나는", "고양이"]))
      a ━━ 나는 .90   ━ 고양이 .10
    cat ━━ 고양이 1.00
    """
    array, most = checked_matrix("lines()", weights, rows, columns)
    right, left = [label(word) for word in rows], [label(word) for word in columns]
    canvas = Canvas(label(title, 90) or "Words joined by lines")
    tallest = max(len(left), len(right))
    tops = [(tallest - len(side)) * STEP / 2 for side in (left, right)]
    order = numpy.argsort(array, axis=None, kind="stable")
    for row, column in zip(*numpy.unravel_index(order, array.shape), strict=True):
        level = array[row, column] / most
        if level >= FAINTEST:
            start, end = tops[0] + column * STEP, tops[1] + row * STEP
            points = ((0, start), (ACROSS * 0.4, start), (ACROSS * 0.6, end), (ACROSS, end))
            canvas.curve(
                points, color=LINK, width=0.5 + 3.2 * level, opacity=round(0.12 + 0.78 * float(level), 2)
            )
    for number, word in enumerate(left):
        canvas.words(-8, tops[0] + number * STEP, word, anchor="end")
    for number, word in enumerate(right):
        canvas.words(ACROSS + 8, tops[1] + number * STEP, word)
    canvas.about = f"{len(left)} keys on the left, {len(right)} queries on the right"
    canvas.head(label(title, 90), label(about, 110))
    return Picture([canvas], Joined(array, tuple(right), tuple(left), label(title, 90)))


@dataclass(frozen=True, eq=False)
class Joined(Drawing):
    """The picture of lines() in the terminal: one line of text for each query, with its largest weights."""

    weights: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, "bold", no_wrap=False)
        side = max([0, *map(cell_len, self.rows)])
        for name, weights in zip(self.rows, self.weights, strict=True):
            line = Text(" " * (side - cell_len(name)) + name)
            keys = numpy.argsort(-weights, kind="stable")[:KEYS_SHOWN]
            for number, key in enumerate(key for key in keys if weights[key] >= 0.05):
                level = float(weights[key])
                strong = "=" if shades.plain else "━"
                mark = strong * (2 if level >= 0.5 else 1)
                line.append("   " if number else " ")
                line.append(mark, Style(color=ramp(0.25 + 0.6 * level)) if shades.colour else Style())
                line.append(f" {self.columns[key]} ")
                line.append(f"{level:.2f}".removeprefix("0"), "dim")
            yield line
