"""over_time(): draw the attention weight of one key for each query, from the first to the last, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.viewing.as_arrays import checked_matrix
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import FAINT, LINK, QUIET, label, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.view_selection import Word, place_of
from regard.viewing.terminal import bars, draw

__all__ = ["over_time"]

STEP = 22.0
"""Distance between the bars of two steps, in points."""

HEIGHT, SMALL_HEIGHT = 130.0, 24.0
"""Height of a bar for weight 1, in points.

HEIGHT: in a picture of one key.
SMALL_HEIGHT: in a picture of all keys."""


def over_time(
    weights: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str = "",
    about: str = "",
    *,
    word: Word | None = None,
) -> Picture:
    """Draw the weight of a key for each query, from the first query to the last, as bars.

    weights: (T, S).
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.
    word: the key to draw, as an index or as text. Default: all keys, one below the other.

    >>> from regard.viewing import over_time
    >>> print(over_time([[0.9, 0.1], [0.0, 1.0]], ["a", "cat"], ["나는", "고양이"], word="고양이"))
    고양이
      a ━━━━ 0.100
    cat ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 1.000
    """
    array, _ = checked_matrix("over_time()", weights, rows, columns)
    steps, keys = [label(each) for each in rows], [label(each) for each in columns]
    most = max(1.0, float(numpy.nanmax(array, initial=0.0)))
    if word is None:
        canvas = _all(array / most, steps, keys)
        terminal: Any = draw(array.T, keys, steps, title or None)
    else:
        place = place_of(word, list(map(str, columns)), "over_time()")
        canvas = _one(array[:, place] / most, steps, most)
        title = title or keys[place]
        terminal = bars(array[:, place], steps, keys[place], most=most)
    canvas.head(label(title, 90), label(about, 110))
    canvas.title = label(title, 90) or "Attention to words over time"
    canvas.about = "the weight of a word at each step, as bars"
    return Picture([canvas], terminal)


def _one(levels: NDArray[numpy.float64], steps: Sequence[str], most: float) -> Canvas:
    canvas, width = Canvas(), len(levels) * STEP
    for part in (0.0, 0.5, 1.0):
        canvas.line(0, -HEIGHT * part, width, -HEIGHT * part, color=FAINT, width=0.7)
        canvas.words(-6, -HEIGHT * part, f"{part * most:g}", 8, anchor="end", color=QUIET)
    for number, level in enumerate(levels):
        if level > 0.002:
            canvas.box(number * STEP + 3, -HEIGHT * level, STEP - 6, HEIGHT * level, LINK)
        if level >= 0.05:
            middle = number * STEP + STEP / 2
            number_text = f"{level * most:.2f}".removeprefix("0")
            canvas.words(middle, -HEIGHT * level - 7, number_text, 7.5, anchor="middle", color=QUIET)
    _under(canvas, steps, 8)
    return canvas


def _all(levels: NDArray[numpy.float64], steps: Sequence[str], keys: Sequence[str]) -> Canvas:
    canvas, width = Canvas(), len(steps) * STEP
    for place, key in enumerate(keys):
        bottom = place * (SMALL_HEIGHT + 5)
        canvas.words(-8, bottom - SMALL_HEIGHT / 3, key, anchor="end")
        canvas.line(0, bottom, width, bottom, color=FAINT, width=0.7)
        for number, level in enumerate(levels[:, place]):
            if level > 0.01:
                canvas.box(
                    number * STEP + 2, bottom - SMALL_HEIGHT * level, STEP - 4, SMALL_HEIGHT * level, LINK
                )
    _under(canvas, steps, (len(keys) - 1) * (SMALL_HEIGHT + 5) + 8)
    return canvas


def _under(canvas: Canvas, steps: Sequence[str], y: float) -> None:
    """Write the word of each query below its bar. The words are slanted if they do not fit side by side.

    steps: the words of the queries.
    y: the vertical position of the words, in points.
    """
    level = max((width_of(each, SIZE) for each in steps), default=0.0) <= STEP - 3
    for number, each in enumerate(steps):
        middle = number * STEP + STEP / 2
        if level:
            canvas.words(middle, y + 3, each, anchor="middle")
        else:
            canvas.words(middle + 2, y, each, anchor="end", angle=50)
