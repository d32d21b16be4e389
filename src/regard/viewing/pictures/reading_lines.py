"""reading(): draw how each word of a text attends to earlier words. Each word has a line of shaded words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import check_words, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, LINK, WHITE, label, shade, text_color_on, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.shaded_text import HEIGHT, PAD, WIDE
from regard.viewing.terminal import Drawing
from regard.viewing.terminal_colors import Shades, ramp

__all__ = ["reading"]


def reading(
    weights: Any, words: Sequence[object], title: str = "", about: str = "", *, most: float | None = None
) -> Picture:
    """Draw how each word of a text attends to the words before it, as in figure 1 of Cheng et al. (2016).

    There is one line for each word. It shows the text up to this word. The word has a frame. The shade of an
    earlier word shows the weight with which the framed word attends to the earlier word.

    weights: (T, T). Row t has the weights with which word t attends to words 0 to t. The other weights must
        be 0.
    words: the T words of the text.
    title: text above the picture.
    about: a line below the title.
    most: the weight that is drawn darkest. Default: the largest weight.

    >>> from regard.viewing import reading
    >>> print(reading([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.8, 0.0]], ["the", "cat", "sat"]))
    [the]
    the 1.00  [cat]
    the .20  cat .80  [sat]
    """
    array, darkest = checked_weights("reading()", weights, "TS", most)
    check_words("reading()", "words", words, array, axis=1)
    if array.shape[0] != array.shape[1] or numpy.triu(array, 1).any():
        problem = (
            f"weights has shape {array.shape}"
            if len(array) != array.shape[1]
            else "a word attends to later words"
        )
        expected = "a square matrix, in which no word attends to later words"
        raise ArgumentError(message("reading()", problem, expected=expected, hint="use view='matrix'"))
    names, scale = [label(each) for each in words], darkest or 1.0
    canvas, top = Canvas(label(title, 90) or "How the text is read"), 0.0
    for number in range(len(names)):
        top += _line(canvas, top, names[: number + 1], array[number] / scale) + 4
    canvas.scale(0.0, top + 10, scale)
    canvas.head(label(title, 90), label(about, 110))
    canvas.about = f"a line for each of {len(names)} words, which is framed; darker words have larger weights"
    return Picture([canvas], Readings(array, tuple(names), label(title, 90), scale))


def _line(canvas: Canvas, y: float, words: Sequence[str], levels: NDArray[numpy.floating]) -> float:
    """Draw words, and a frame around the last word. Return the height of the drawing in points.

    The first word is at (0, y). Words are wrapped at the width WIDE.

    levels: for the shade of each word: its weight divided by the largest weight.
    """
    left, top = 0.0, y
    for number, word in enumerate(words):
        width, level = round(width_of(word, SIZE) + 2 * PAD), float(levels[number])
        if left and left + width > WIDE:
            left, top = 0.0, top + HEIGHT + 2
        current = number == len(words) - 1
        fill = shade(level) if level or not current else WHITE
        canvas.box(left, top, width, HEIGHT, fill, edge=LINK if current else "", round=3)
        color = text_color_on(level) if level or not current else DARK
        canvas.words(left + width / 2, top + HEIGHT / 2, word, anchor="middle", color=color, bold=current)
        left += width + 3
    return top - y + HEIGHT


@dataclass(frozen=True, eq=False)
class Readings(Drawing):
    """The result of reading() for the terminal: one line for each word, with earlier words shaded.

    If the terminal has no colours, weights of 0.05 or more are printed as numbers.

    weights: (T, T). Row t has the weights of word t.
    words: the T words.
    title: text above the lines.
    most: the weight that is drawn darkest.
    """

    weights: NDArray[numpy.float64]
    words: tuple[str, ...]
    title: str
    most: float

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, "bold", no_wrap=False)
        for number, weights in enumerate(self.weights):
            line, used = Text(), 0
            for place, word in enumerate(self.words[: number + 1]):
                text, style = self._shown(shades, word, float(weights[place]), place == number)
                if used and used + cell_len(text) > width:
                    yield line
                    line, used = Text(), 0
                line.append(text, style)
                used += cell_len(text)
            yield line

    def _shown(self, shades: Shades, word: str, weight: float, current: bool) -> tuple[str, Style]:
        level = weight / self.most
        number = f" {weight:.2f}".replace(" 0.", " .") if weight >= 0.05 and not shades.colour else ""
        text = f"[{word}]{number}" if current else f"{word}{number}"
        if not shades.colour:
            return text if current else f"{text}  ", Style(bold=current)
        if current and not weight:
            return f" {text} ", Style(bold=True)
        return f" {text} ", Style(
            bgcolor=ramp(level), color="black" if level > 0.6 else "bright_white", bold=current
        )
