"""Draw weights in the terminal: draw() as a matrix of coloured cells (queries x keys), bars() as bars.

The results of `draw` and `bars` can be printed in colour with rich (`rich.print(draw(...))`), as plain
characters with print(), or saved with their method save().
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from regard.viewing.as_arrays import check_words, checked_matrix, checked_weights
from regard.viewing.terminal_colors import Shades, clean, cropped, ramp

LEGEND = 20
"""Maximum width of the legend in terminal cells. A cell has the width of one narrow character."""

LONGEST, LONGEST_SIDE = 18, 24
"""Maximum width of a column label (LONGEST) and of a row label (LONGEST_SIDE) in terminal cells. Longer words
are truncated."""


class Shown:
    """Base class of objects that rich can print. str() returns plain text; a notebook shows an SVG.

    save() writes the object to a file, as it looks in a terminal that is wide enough for all columns.
    """

    @property
    def least_width(self) -> int:
        """The number of terminal cells with which nothing is left out."""
        return 0

    def __str__(self) -> str:
        page = io.StringIO()
        Console(file=page, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines())

    def save(self, path: str | Path) -> tuple[str, ...]:
        """Write a .png, .svg, .pdf or .gif file, atomically.

        Returns hints about characters that no installed font has; see Picture.save().
        """
        from regard.viewing.pictures.svg_writer import to_canvas

        module = importlib.import_module("regard.viewing.pictures.picture_files")  # it imports this module
        hints: tuple[str, ...] = module.Picture([to_canvas(self)], self).save(path)  # type: ignore[arg-type]
        return hints

    def _repr_svg_(self) -> str:
        from regard.viewing.pictures.svg_writer import to_svg

        return to_svg(self)  # type: ignore[arg-type]


class Drawing(Shown):
    """Base class of drawings for the terminal that consist of lines of text, such as Matrix and Bars."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in self.lines(Shades(console, options), options.max_width):
            if line.no_wrap is None:  # wrapping would break the columns
                line.no_wrap, line.overflow = True, "crop"
            yield line

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        """Yield the drawing line by line, as texts that rich can print.

        shades: draws cells and bars with the colours of the console.
        width: the width of the console in terminal cells.
        """
        raise TypeError(f"{type(self).__name__} does not implement lines()")


@dataclass(frozen=True, eq=False)
class Matrix(Drawing):
    """A matrix of weights in the terminal, the result of `draw`. For the fields, see draw().

    shown: the numbers to write in the cells, if they are not the weights.
    """

    weights: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: tuple[str, ...]
    numbers: bool
    legend: bool
    most: float
    shown: NDArray[numpy.float64] | None = None

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        below = self._side + LEGEND if self.legend else 0
        widest = max([self._side + sum(self._label_widths), below, *map(cell_len, self.title)])
        return Measurement(min(widest, 16), min(widest, options.max_width))

    @property
    def least_width(self) -> int:
        return self._side + self._stacked_width * len(self.columns)

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        side = self._side
        widths, stacked = self._fitted(width - side)
        yield from _titles(self.title)
        yield from self._header(side, widths, stacked)
        numbers = self.weights if self.shown is None else self.shown
        for name, weights, values in zip(self.rows, self.weights, numbers, strict=True):
            line = Text(" " * (side - 1 - cell_len(name)) + name + " ")
            for weight, value, cell_width in zip(weights, values, widths, strict=False):
                line.append(*shades.cell(self._level(weight), cell_width, self._number(value)))
            yield line
        if self.legend:
            yield from Legend(self.most, side).lines(shades, width)
        left_out = len(self.columns) - len(widths)
        if left_out:
            note = f"{len(widths)} of {len(self.columns)} keys fit, {left_out} are not drawn"
            yield Text(note, "dim", no_wrap=False)

    def _level(self, weight: float) -> float:
        return min(max(weight / self.most, 0.0), 1.0)

    def _number(self, weight: float) -> str:
        if not self.numbers:
            return ""
        return "0" if weight == 0 else f"{weight:.2f}".removeprefix("0")

    @property
    def _side(self) -> int:
        return max([0, *map(cell_len, self.rows)]) + 1

    @property
    def _label_widths(self) -> list[int]:
        """The width in terminal cells that each column needs for its label or its numbers."""
        return [max(6 if self.numbers else 4, cell_len(column) + 2) for column in self.columns]

    def _fitted(self, available: int) -> tuple[list[int], bool]:
        """Return the widths of the columns that fit, and whether the column labels are vertical.

        available: the number of terminal cells for all columns. Columns that do not fit are left out.
        """
        needed = self._label_widths
        for widths in ([max(needed, default=0)] * len(needed), needed):
            if sum(widths) <= available:
                return widths, False
        each = self._stacked_width
        return [each] * min(len(needed), max(available // each, 1)), True

    @property
    def _stacked_width(self) -> int:
        """The width of a column in terminal cells if its label is vertical."""
        return 5 if self.numbers else 2

    def _header(self, side: int, widths: list[int], stacked: bool) -> Iterator[Text]:
        shown = self.columns[: len(widths)]
        if not stacked:
            names = (_centred(name, width) for name, width in zip(shown, widths, strict=True))
            yield Text(" " * side + "".join(names))
            return
        words = [_characters(name) for name in shown]
        height = max(map(len, words), default=0)
        for line in range(height):
            # Vertical words are aligned at the bottom, so that they end next to the matrix.
            letters = (word[line - height] if line >= height - len(word) else "" for word in words)
            pairs = zip(letters, widths, strict=True)
            yield Text(" " * side + "".join(_centred(letter, width) for letter, width in pairs))


@dataclass(frozen=True, eq=False)
class Bars(Drawing):
    """One row of weights as bars in the terminal, the result of `bars`. For the fields, see bars()."""

    weights: NDArray[numpy.float64]
    labels: tuple[str, ...]
    title: tuple[str, ...]
    most: float

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        side = max([0, *map(cell_len, self.labels)])
        return Measurement(min(side + 12, options.max_width), min(side + 48, options.max_width))

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        side = max([0, *map(cell_len, self.labels)])
        room = max(min(width - side - 8, 40), 1)
        yield from _titles(self.title)
        for name, weight in zip(self.labels, self.weights, strict=True):
            line = Text(" " * (side - cell_len(name)) + name + " ")
            line.append(*shades.bar(min(max(weight / self.most, 0.0), 1.0), room))
            line.append(f" {weight:.3f}", Style(dim=True))
            yield line


@dataclass(frozen=True, eq=False)
class Thumbnails(Drawing):
    """Small matrices of weights side by side in the terminal, such as those of the heads of one site.

    name: the text above the weights, such as the name of the site.
    heads: one matrix per head, with weights from 0 to 1.
    marked: the row and the column of a cell that is marked by [].
    cell: the width of a cell in characters. Default: 2 for at most 8 columns, otherwise 1.

    >>> print(Thumbnails("cat", (numpy.array([[0.0, 1.0], [0.5, 0.0]]),), (0, 1)))
    cat
      []
    ▒▒
    """

    name: str
    heads: tuple[NDArray[numpy.float64], ...]
    marked: tuple[int, int] | None = None
    cell: int = 0

    @property
    def _across(self) -> int:
        return self.cell or (2 if self.heads[0].shape[1] <= 8 else 1)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max(len(self.heads) * (self.heads[0].shape[1] * self._across + 2) - 2, cell_len(self.name))
        return Measurement(min(8, options.max_width), min(widest, options.max_width))

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        yield Text(self.name, "bold")
        rows, columns = self.heads[0].shape
        per_line = max((width + 2) // (columns * self._across + 2), 1)
        for first in range(0, len(self.heads), per_line):
            some = self.heads[first : first + per_line]
            if len(self.heads) > 1:
                names = (f"{first + at}".ljust(columns * self._across + 2) for at in range(len(some)))
                yield Text("".join(names).rstrip(), "dim")
            for row in range(rows):
                line = Text()
                for at, levels in enumerate(some):
                    line.append("  " if at else "")
                    for column, level in enumerate(map(float, levels[row])):
                        line.append(*self._cell(shades, level, "[]" if (row, column) == self.marked else ""))
                yield line

    def _cell(self, shades: Shades, level: float, mark: str) -> tuple[str, Style]:
        if shades.colour:
            return shades.cell(level, self._across, mark)
        return mark or shades.blocks[round(min(max(level, 0.0), 1.0) * 4)] * self._across, Style()


@dataclass(frozen=True, eq=False)
class Legend(Drawing):
    """A line in the terminal that explains the colours of weights, from 0 to `most`, the largest weight."""

    most: float
    indent: int = 0

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        line = Text(" " * self.indent).append("0 ", "dim")
        if shades.colour:
            for step in range(12):
                line.append("▄", Style(color=ramp(step / 11)))
        else:
            line.append(shades.blocks)
        yield line.append(f" {self.most:.3g}", "dim")


def draw(
    weights: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str | None = None,
    *,
    numbers: bool = False,
    legend: bool = True,
    most: float | None = None,
    longest_row: int = LONGEST_SIDE,
) -> Matrix:
    """Draw a matrix of weights, with the queries as row labels and the keys as column labels.

    weights: (T, S), an array, a tensor or lists.
    rows, columns: T words for the queries, S words for the keys.
    title: one or more lines above the matrix, the first in bold.
    numbers: whether to write each weight in its cell.
    legend: whether to show the colour scale below the matrix.
    most: the weight at the top of the scale. Default: 1, or the largest weight if this is above 1. With 1,
        the same shade means the same weight in every drawing. Use most=weights.max() to see small
        differences.
    longest_row: maximum width of a row label in terminal cells. Longer labels are truncated.

    >>> from regard.viewing import draw
    >>> print(draw([[0.9, 0.1], [0.0, 1.0]], ["I", "cat"], ["나는", "고양이"], most=1))
            나는    고양이
      I   ███████    ·
      cat    ·    ███████
          0  ░▒▓█ 1
    """
    array, brightest = checked_matrix("draw()", weights, rows, columns, most)
    beside, above = _words(rows, longest_row), _words(columns, LONGEST)
    top = brightest if most else max(brightest, 1.0)
    return Matrix(array, beside, above, _cleaned_title(title), numbers, legend, top)


def bars(
    weights: Any, labels: Sequence[object], title: str | None = None, *, most: float | None = None
) -> Bars:
    """Draw one row of weights as bars, one for each key.

    weights: (S,), an array, a tensor or a list.
    labels: S words.
    title: one or more lines above the bars.
    most: the weight of a bar of full length. Default: 1, or the largest weight if this is above 1.

    >>> from regard.viewing import bars
    >>> print(bars([0.25, 0.75], ["주어", "어디에서"]))
        주어 ━━━━━━━━━━ 0.250
    어디에서 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0.750
    """
    array, brightest = checked_weights("bars()", weights, "S", most)
    check_words("bars()", "labels", labels, array, axis=0)
    beside, full = _words(labels, LONGEST_SIDE), brightest if most else max(brightest, 1.0)
    return Bars(array, beside, _cleaned_title(title), full)


@dataclass(frozen=True, eq=False)
class Beside(Shown):
    """Several drawings side by side in the terminal, the result of beside()."""

    drawings: tuple[RenderableType, ...]

    @property
    def least_width(self) -> int:
        return max((getattr(drawing, "least_width", 0) for drawing in self.drawings), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Columns([Group(drawing, "") for drawing in self.drawings], padding=(0, 3))


def beside(*drawings: RenderableType) -> Beside:
    """Put drawings side by side. Drawings that do not fit into the width of the console go to the next row.

    >>> from regard.viewing import beside, draw
    >>> pair = beside(draw([[1.0]], ["a"], ["b"]), draw([[1.0]], ["c"], ["d"]))
    >>> str(pair).splitlines()[0]
    '    b      d'
    """
    return Beside(drawings)


def _words(words: Sequence[object], longest: int) -> tuple[str, ...]:
    return tuple(cropped(clean(word), longest) for word in words)


def _cleaned_title(title: str | None) -> tuple[str, ...]:
    return tuple(clean(line) for line in (title or "").splitlines())


def _titles(lines: tuple[str, ...]) -> Iterator[Text]:
    for number, line in enumerate(lines):
        yield Text(line, "dim" if number else "bold", no_wrap=False)


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


def _centred(text: str, width: int) -> str:
    """Return the text centred in `width` terminal cells. A wide character has the width of two cells."""
    return set_cell_size(" " * ((width - cell_len(text)) // 2) + text, width)


def _characters(text: str) -> list[str]:
    """Split text into characters, each with its combining marks, for labels that are written vertically."""
    characters: list[str] = []
    for character in text:
        if characters and cell_len(character) == 0:
            characters[-1] += character
        else:
            characters.append(character)
    return characters
