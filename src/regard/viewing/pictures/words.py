"""Weights beside the words of sentences: shaded(), reading(), lines() and over_time()."""

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
from regard.viewing.pictures.canvas import (
    DARK,
    FAINT,
    LINK,
    QUIET,
    SIZE,
    WHITE,
    Canvas,
    label,
    shade,
    text_color_on,
    width_of,
)
from regard.viewing.pictures.picture_files import Picture, finished
from regard.viewing.pictures.view_selection import Word, place_of
from regard.viewing.terminal import Drawing, bars, draw
from regard.viewing.terminal_colors import Shades, ramp

WIDE = 560.0
"""Maximum width of a line in points. Longer sentences are wrapped."""

HEIGHT, PAD = 17.0, 4.0
"""HEIGHT: height of a line. PAD: padding around a word. Both in points."""

STEP, ACROSS = 18.0, 130.0
"""STEP: distance between words. ACROSS: distance between the two columns. Both in points."""

FAINTEST = 0.05
"""Weights below this fraction of the largest weight have no line."""

KEYS_SHOWN = 4
"""Maximum number of keys that are printed for each query in the terminal."""

BAR_STEP = 22.0
"""Distance between the bars of two steps, in points."""

BAR, SMALL_BAR = 130.0, 24.0
"""Height of a bar for weight 1, in points.

BAR: in a picture of one key.
SMALL_BAR: in a picture of all keys."""


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
    content = (
        f"the same {len(keys)} words for each of {len(queries)} queries; darker words have larger weights"
    )
    drawn = Sentences([(keys, array[place]) for place in places], queries, label(title, 90), darkest)
    canvas = _sentences(drawn, DARK if word is None else QUIET)
    return finished(canvas, drawn, title, about, name="Sentence with shaded words", content=content)


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
    content = f"a line for each of {len(names)} words, which is framed; darker words have larger weights"
    sentences = [(names[: place + 1], array[place, : place + 1]) for place in range(len(names))]
    drawn = Sentences(sentences, (), label(title, 90), darkest)
    return finished(_sentences(drawn), drawn, title, about, name="How the text is read", content=content)


def _sentences(drawn: Sentences, color: str = DARK) -> Canvas:
    """Return a canvas with sentences below each other, and their labels on the left in this colour."""
    canvas = Canvas()
    left = max((width_of(each, SIZE) + 14 for each in drawn.labels), default=0.0)
    top = 0.0
    for number, (words, weights) in enumerate(drawn.sentences):
        if drawn.labels:
            canvas.words(left - 14, top + HEIGHT / 2, drawn.labels[number], anchor="end", color=color)
        top += _sentence(canvas, left, top, words, weights / drawn.most, framed=not drawn.labels) + 4
    canvas.scale(left, top + 10, drawn.most)
    return canvas


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
    canvas = Canvas()
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
    drawn = Joined(array, tuple(right), tuple(left), label(title, 90))
    content = f"{len(left)} keys on the left, {len(right)} queries on the right"
    return finished(canvas, drawn, title, about, name="Words joined by lines", content=content)


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
                link = Text("   " if number else " ")
                link.append(mark, Style(color=ramp(0.25 + 0.6 * level)) if shades.colour else Style())
                link.append(f" {self.columns[key]} ")
                link.append(f"{level:.2f}".removeprefix("0"), "dim")
                if number and line.cell_len + link.cell_len > width:
                    break  # whole links only: a weight that is cut would be another number
                line.append_text(link)
            yield line


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
    content = "the weight of a word at each step, as bars"
    name = "Attention to words over time"
    return finished(canvas, terminal, title, about, name=name, content=content)


def _one(levels: NDArray[numpy.float64], steps: Sequence[str], most: float) -> Canvas:
    canvas, width = Canvas(), len(levels) * BAR_STEP
    for part in (0.0, 0.5, 1.0):
        canvas.line(0, -BAR * part, width, -BAR * part, color=FAINT, width=0.7)
        canvas.words(-6, -BAR * part, f"{part * most:g}", 8, anchor="end", color=QUIET)
    for number, level in enumerate(levels):
        if level > 0.002:
            canvas.box(number * BAR_STEP + 3, -BAR * level, BAR_STEP - 6, BAR * level, LINK)
        if level >= 0.05:
            middle = number * BAR_STEP + BAR_STEP / 2
            number_text = f"{level * most:.2f}".removeprefix("0")
            canvas.words(middle, -BAR * level - 7, number_text, 7.5, anchor="middle", color=QUIET)
    _under(canvas, steps, 8)
    return canvas


def _all(levels: NDArray[numpy.float64], steps: Sequence[str], keys: Sequence[str]) -> Canvas:
    canvas, width = Canvas(), len(steps) * BAR_STEP
    for place, key in enumerate(keys):
        bottom = place * (SMALL_BAR + 5)
        canvas.words(-8, bottom - SMALL_BAR / 3, key, anchor="end")
        canvas.line(0, bottom, width, bottom, color=FAINT, width=0.7)
        for number, level in enumerate(levels[:, place]):
            if level > 0.01:
                canvas.box(
                    number * BAR_STEP + 2, bottom - SMALL_BAR * level, BAR_STEP - 4, SMALL_BAR * level, LINK
                )
    _under(canvas, steps, (len(keys) - 1) * (SMALL_BAR + 5) + 8)
    return canvas


def _under(canvas: Canvas, steps: Sequence[str], y: float) -> None:
    """Write the word of each query below its bar. The words are slanted if they do not fit side by side.

    steps: the words of the queries.
    y: the vertical position of the words, in points.
    """
    level = max((width_of(each, SIZE) for each in steps), default=0.0) <= BAR_STEP - 3
    for number, each in enumerate(steps):
        middle = number * BAR_STEP + BAR_STEP / 2
        if level:
            canvas.words(middle, y + 3, each, anchor="middle")
        else:
            canvas.words(middle + 2, y, each, anchor="end", angle=50)
