"""Sentences with shaded words: shaded(), one for each query, and reading(), one for each word of a text."""

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
from regard.viewing.as_arrays import check_words, checked_matrix, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, LINK, QUIET, WHITE, label, shade, text_color_on, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.view_selection import Word, place_of
from regard.viewing.terminal import Drawing
from regard.viewing.terminal_colors import Shades, ramp

__all__ = ["reading", "shaded"]

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
    array, darkest = checked_matrix("shaded()", weights, rows, columns, most)
    places = range(len(rows)) if word is None else [place_of(word, list(map(str, rows)), "shaded()")]
    queries, keys = tuple(label(rows[place]) for place in places), tuple(map(label, columns))
    canvas = Canvas(label(title, 90) or "Sentence with shaded words")
    canvas.about = (
        f"the same {len(keys)} words for each of {len(queries)} queries; darker words have larger weights"
    )
    sentences = [(keys, array[place]) for place in places]
    color = DARK if word is None else QUIET
    return _sentences(canvas, Sentences(sentences, queries, label(title, 90), darkest), about, color)


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
    names = tuple(map(label, words))
    canvas = Canvas(label(title, 90) or "How the text is read")
    canvas.about = f"a line for each of {len(names)} words, which is framed; darker words have larger weights"
    sentences = [(names[: place + 1], array[place, : place + 1]) for place in range(len(names))]
    return _sentences(canvas, Sentences(sentences, (), label(title, 90), darkest), about)


def _sentences(canvas: Canvas, drawn: Sentences, about: str, color: str = DARK) -> Picture:
    """Draw sentences below each other, with their labels on the left, and return the finished picture.

    color: the colour of the labels.
    """
    left = max((width_of(each, SIZE) + 14 for each in drawn.labels), default=0.0)
    top = 0.0
    for number, (words, weights) in enumerate(drawn.sentences):
        if drawn.labels:
            canvas.words(left - 14, top + HEIGHT / 2, drawn.labels[number], anchor="end", color=color)
        top += _sentence(canvas, left, top, words, weights / drawn.most, framed=not drawn.labels) + 4
    canvas.scale(left, top + 10, drawn.most)
    canvas.head(drawn.title, label(about, 110))
    return Picture([canvas], drawn)


def _sentence(
    canvas: Canvas, x: float, y: float, words: Sequence[str], levels: NDArray[numpy.floating], framed: bool
) -> float:
    """Draw words with coloured backgrounds, wrapped to lines of WIDE points. Return the height of all lines.

    x, y: where the first line starts.
    levels: a number from 0 (light) to 1 (dark) for the background of each word.
    framed: whether the last word has a frame.
    """
    left, top = x, y
    for number, (word, level) in enumerate(zip(words, map(float, levels), strict=True)):
        width = round(width_of(word, SIZE) + 2 * PAD)
        if left > x and left + width > x + WIDE:
            left, top = x, top + HEIGHT + 2
        current = framed and number == len(words) - 1
        plain = current and not level
        fill, edge = WHITE if plain else shade(level), LINK if current else ""
        canvas.box(left, top, width, HEIGHT, fill, edge=edge, round=3)
        color = DARK if plain else text_color_on(level)
        canvas.words(left + width / 2, top + HEIGHT / 2, word, anchor="middle", color=color, bold=current)
        left += width + 3
    return top - y + HEIGHT


@dataclass(frozen=True, eq=False)
class Sentences(Drawing):
    """Sentences in the terminal. The background colour of a word shows its weight.

    In a terminal without colours, a number after the word shows its weight, from 0.05 on.

    sentences: for each sentence, its words and their weights.
    labels: the label of each sentence; empty for sentences without labels, whose last word has a frame.
    title: text above the sentences.
    most: the weight that is drawn darkest.
    """

    sentences: Sequence[tuple[tuple[str, ...], NDArray[numpy.float64]]]
    labels: tuple[str, ...]
    title: str
    most: float

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, "bold", no_wrap=False)
        gap = 1 if shades.colour else 2
        side = max(map(cell_len, self.labels)) + gap if self.labels else 0
        for number, (words, weights) in enumerate(self.sentences):
            name = self.labels[number] if self.labels else ""
            line, used = Text(" " * max(side - gap - cell_len(name), 0) + name + " " * min(gap, side)), side
            for place, (word, weight) in enumerate(zip(words, map(float, weights), strict=True)):
                framed = not self.labels and place == len(words) - 1
                text, style = self._shown(shades, word, weight, framed)
                if used > side and used + cell_len(text) > width:
                    yield line
                    line, used = Text(" " * side), side
                line.append(text, style)
                used += cell_len(text)
            yield line

    def _shown(self, shades: Shades, word: str, weight: float, framed: bool) -> tuple[str, Style]:
        level = weight / self.most
        number = f" {weight:.2f}".replace(" 0.", " .") if weight >= 0.05 and not shades.colour else ""
        text = f"[{word}]{number}" if framed else f"{word}{number}"
        if not shades.colour:
            return text if framed else f"{text}  ", Style(bold=framed)
        if framed and not weight:
            return f" {text} ", Style(bold=True)
        color = "black" if level > 0.6 else "bright_white"
        return f" {text} ", Style(bgcolor=ramp(level), color=color, bold=framed)
