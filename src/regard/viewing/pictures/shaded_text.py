"""shaded(): draw the sentence of the keys for one or all queries. Words with larger weights are darker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.viewing.as_arrays import check_words, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, QUIET, label, shade, text_color_on, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.view_selection import Word, place_of
from regard.viewing.terminal import Drawing
from regard.viewing.terminal_colors import Shades, ramp

__all__ = ["shaded", "shaded_line"]

WIDE = 560.0
"""Maximum width of a line in points. Longer sentences are wrapped."""

HEIGHT, PAD = 17.0, 4.0
"""HEIGHT: height of a line. PAD: padding around a word. Both in points."""


def shaded(
    weights: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str = "",
    about: str = "",
    *,
    word: Word | None = None,
    most: float | None = None,
) -> Picture:
    """Draw the sentence of the keys once for each query. Words with larger weights have a darker background.

    weights: (T, S).
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.
    word: the only query to draw, as an index or as text. Default: all queries.
    most: the weight that is drawn darkest. Default: the largest weight.

    >>> from regard.viewing import shaded
    >>> print(shaded([[0.9, 0.1], [0.0, 1.0]], ["a", "cat"], ["나는", "고양이"]))
      a  나는 .90  고양이 .10
    cat  나는  고양이 1.00
    """
    array, darkest = checked_weights("shaded()", weights, "TS", most)
    check_words("shaded()", "rows", rows, array, axis=0)
    check_words("shaded()", "columns", columns, array, axis=1)
    places = range(len(rows)) if word is None else [place_of(word, list(map(str, rows)), "shaded()")]
    queries, keys = [label(rows[place]) for place in places], [label(each) for each in columns]
    canvas = Canvas(label(title, 90) or "Sentence with shaded words")
    side = max((width_of(each, SIZE) for each in queries), default=0.0)
    top = 0.0
    for query, place in zip(queries, places, strict=True):
        canvas.words(side, top + HEIGHT / 2, query, anchor="end", color=DARK if word is None else QUIET)
        top += shaded_line(canvas, side + 14, top, keys, array[place] / darkest) + 4
    canvas.scale(side + 14, top + 10, darkest)
    canvas.head(label(title, 90), label(about, 110))
    canvas.about = (
        f"the same {len(keys)} words for each of {len(queries)} queries; darker words have larger weights"
    )
    chosen = array[list(places)]
    return Picture([canvas], Lines(chosen, tuple(queries), tuple(keys), label(title, 90), darkest))


def shaded_line(
    canvas: Canvas, x: float, y: float, words: Sequence[str], levels: NDArray[numpy.floating]
) -> float:
    """Draw words with coloured backgrounds, wrapped to lines of WIDE points. Return the height of all lines.

    x, y: where the first line starts.
    levels: a number from 0 (light) to 1 (dark) for the background of each word.
    """
    left, top = x, y
    for word, level in zip(words, levels, strict=True):
        width = round(width_of(word, SIZE) + 2 * PAD)
        if left > x and left + width > x + WIDE:
            left, top = x, top + HEIGHT + 2
        canvas.box(left, top, width, HEIGHT, shade(float(level)), round=3)
        canvas.words(
            left + width / 2, top + HEIGHT / 2, word, anchor="middle", color=text_color_on(float(level))
        )
        left += width + 3
    return top - y + HEIGHT


@dataclass(frozen=True, eq=False)
class Lines(Drawing):
    """The picture of shaded() in the terminal: the sentence of the keys, once for each query.

    The background colour of a word shows its weight. In a terminal without colours, a number after the word
    shows the weight.
    """

    weights: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str
    most: float

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, "bold", no_wrap=False)
        side = max([0, *map(cell_len, self.rows)])
        for name, weights in zip(self.rows, self.weights, strict=True):
            line, used = Text(" " * (side - cell_len(name)) + name + " "), side + 1
            for word, weight in zip(self.columns, weights, strict=True):
                text, style = self._shown(shades, word, float(weight))
                if used > side + 1 and used + cell_len(text) > width:
                    yield line
                    line, used = Text(" " * (side + 1)), side + 1
                line.append(text, style)
                used += cell_len(text)
            yield line

    def _shown(self, shades: Shades, word: str, weight: float) -> tuple[str, Style]:
        level = weight / self.most
        if shades.colour:
            return f" {word} ", Style(bgcolor=ramp(level), color="black" if level > 0.6 else "bright_white")
        number = f" {weight:.2f}".replace(" 0.", " .") if weight >= 0.05 else ""
        return f" {word}{number} ", Style()
