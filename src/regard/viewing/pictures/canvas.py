"""Canvas: a list of marks (boxes, text, curves, images) that svg_writer.py and matplotlib_writer.py draw.

Coordinates are in points. x increases to the right and y increases downwards; both may be negative. The size
of a canvas is the size of the bounding box of its marks, plus a margin.

Larger numbers have darker colours, so that pictures work in greyscale, in print and for colour-blind readers.
Negative numbers have a second hue, and their minus sign is always printed. width_of() estimates the width of
a text without reading font files.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy
from numpy.typing import NDArray

from regard.viewing.terminal_colors import clean, cropped

WHITE, DARK, QUIET, FAINT = "#ffffff", "#1b2030", "#69707f", "#dfe2e8"
LINK = "#1f6287"
"""The colour of lines between words."""

_POSITIVE = numpy.array(
    [(245, 246, 248), (205, 228, 217), (116, 187, 178), (40, 122, 146), (30, 61, 102), (14, 18, 34)], float
)
_NEGATIVE = numpy.array(
    [(245, 246, 248), (250, 219, 190), (238, 160, 96), (193, 96, 35), (122, 50, 12)], float
)

_WIDTHS = {
    **dict.fromkeys(" !'(),-./:;I[]\\ijl|ftrJ", 0.36),
    **dict.fromkeys("mwMW%@#&+<=>^~", 0.95),
    **dict.fromkeys("ABCDGHKNOPQRSTUVXYZ", 0.73),
}
_NARROW, _WIDE = 0.63, 1.0
"""Widths of the characters that are not in _WIDTHS, as fractions of the font size.

_NARROW is for most characters, and _WIDE is for full-width East Asian characters. The widths come from DejaVu
Sans, a wide font that is part of matplotlib."""

_MARKS = ("Mn", "Me", "Cf")


def shades(levels: NDArray[numpy.floating]) -> NDArray[numpy.uint8]:
    """Return the colours of the cells of a matrix. Levels with a larger absolute value are darker.

    levels: any shape, from -1 to 1. Negative levels have a second hue. NaN is grey.

    Returns RGB values of shape (..., 3).

    >>> import numpy
    >>> shades(numpy.array([0.0, 1.0])).tolist()
    [[245, 246, 248], [14, 18, 34]]
    """
    levels = numpy.asarray(levels, float)
    unknown = numpy.isnan(levels)
    clipped = numpy.clip(numpy.where(unknown, 0.0, levels), -1.0, 1.0)
    colors = numpy.where(clipped[..., None] < 0, _mixed(_NEGATIVE, -clipped), _mixed(_POSITIVE, clipped))
    colors[unknown] = (190, 190, 190)
    return colors.round().astype(numpy.uint8)


def shade(level: float) -> str:
    """Return the colour of a cell in hexadecimal, such as "#f5f6f8", for a level from -1 to 1.

    Levels with a larger absolute value are darker.
    """
    red, green, blue = shades(numpy.array(level)).tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_color_on(level: float) -> str:
    """Return the text colour with the higher contrast on a cell whose colour is shade(level): WHITE or DARK.

    >>> text_color_on(0.3) == DARK, text_color_on(0.9) == WHITE
    (True, True)
    """
    return max((WHITE, DARK), key=lambda color: contrast(color, shade(level)))


def contrast(color: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((_luminance(color), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@functools.cache
def _luminance(color: str) -> float:
    """Return the relative luminance of a colour such as "#f5f6f8", as WCAG 2 defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def width_of(text: str, size: float) -> float:
    """Estimate the width of a text in points. The estimate is usually too large, so that the text fits.

    size: the font size in points.

    >>> width_of("고양이", 10), width_of("i", 10)
    (30.0, 3.6)
    """
    return round(size * sum(map(_character, text)), 2)


def label(word: object, longest: int = 28) -> str:
    """Return a word as the text of a label. Control characters are escaped, and long text is truncated.

    longest: maximum width in terminal cells. A wide character has the width of two cells.

    >>> label("a" * 40), label("line\\nbreak")
    ('aaaaaaaaaaaaaaaaaaaaaaaaaaa…', 'line\\\\nbreak')
    """
    return cropped(clean(word, kept="\u200c\u200d"), longest)


def _character(character: str) -> float:
    if character in _WIDTHS:
        return _WIDTHS[character]
    if unicodedata.category(character) in _MARKS:
        return 0.0
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _NARROW


def _mixed(ramp: NDArray[numpy.floating], levels: NDArray[numpy.floating]) -> NDArray[numpy.floating]:
    places = numpy.clip(levels, 0.0, 1.0) * (len(ramp) - 1)
    steps = numpy.arange(len(ramp))
    return numpy.stack([numpy.interp(places, steps, ramp[:, colour]) for colour in range(3)], axis=-1)


SIZE = 10.0
"""Default font size in points."""

MIDDLE = 0.36
"""Distance from the baseline to the middle of lower-case letters, as a fraction of the font size."""

NARROWEST = 300.0
"""Minimum width at which titles and notes are wrapped, in points. They are wrapped at the width of the
picture, if this is larger."""

MANY = 4000
"""A grid of more cells than this is drawn as one image instead of boxes."""


@dataclass(frozen=True)
class Placed:
    """A mark with a position: for a rectangle, that of its top left corner."""

    x: float
    y: float

    def moved(self, x: float, y: float) -> Self:
        return replace(self, x=self.x + x, y=self.y + y)


@dataclass(frozen=True)
class Rectangle(Placed):
    width: float
    height: float

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        return self.x, self.y, self.x + self.width, self.y + self.height


@dataclass(frozen=True)
class Box(Rectangle):
    """A rectangle in a picture.

    x, y: the top left corner.
    fill: the colour.
    edge: the colour of the border. "": no border.
    round: the radius of the corners.
    crisp: whether to draw without antialiasing, so that there is no gap between adjacent boxes. It has an
        effect in SVG files only.
    """

    fill: str = WHITE
    edge: str = ""
    round: float = 0.0
    crisp: bool = False


@dataclass(frozen=True)
class Words(Placed):
    """A line of text in a picture.

    x: the horizontal position of the text: of its start, its middle or its end, according to `anchor`.
    y: the vertical position of the middle of the text.
    anchor: "start", "middle" or "end".
    angle: rotation in degrees, counter-clockwise.
    width: if set, the text is stretched to this width. `width`, `bold` and `italic` have an effect in SVG
        files only.
    """

    text: str
    size: float = SIZE
    color: str = DARK
    anchor: str = "start"
    angle: float = 0.0
    width: float | None = None
    bold: bool = False
    italic: bool = False

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        width = width_of(self.text, self.size)
        left = {"start": 0.0, "middle": -width / 2, "end": -width}[self.anchor]
        turn, half = math.radians(-self.angle), self.size * 0.62
        corners = [(x, y) for x in (left, left + width) for y in (-half, half)]
        xs = [self.x + x * math.cos(turn) - y * math.sin(turn) for x, y in corners]
        ys = [self.y + x * math.sin(turn) + y * math.cos(turn) for x, y in corners]
        return min(xs), min(ys), max(xs), max(ys)


@dataclass(frozen=True)
class Curve:
    """A cubic Bézier curve in a picture.

    points: its start, two control points, and its end.
    """

    points: tuple[tuple[float, float], ...]
    color: str = DARK
    width: float = 1.0
    opacity: float = 1.0

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        xs, ys = zip(*self.points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def moved(self, x: float, y: float) -> Curve:
        return replace(self, points=tuple((left + x, top + y) for left, top in self.points))


@dataclass(frozen=True, eq=False)
class Raster(Rectangle):
    """An image that is scaled to a rectangle of a picture.

    x, y: the top left corner of the rectangle.
    pixels: (h, w, 3), uint8.
    smooth: whether to interpolate between pixels.
    """

    pixels: NDArray[numpy.uint8]
    smooth: bool = False


Mark = Box | Words | Curve | Raster


@dataclass(frozen=True)
class Paper:
    """The background and the defaults of an SVG file.

    color: the background colour.
    round: the radius of the corners of the background.
    font: "sans" or "monospace" (the keys of svg_writer.FONTS).
    font_size: the default font size of the file. Text of this size needs no attribute font-size.
    size: width and height of the picture. None: the picture is the bounding box of the marks with a margin,
        and the marks are moved so that this box starts at (0, 0).
    """

    color: str = WHITE
    round: float = 0.0
    font: str = "sans"
    font_size: float = 0.0
    size: tuple[float, float] | None = None


@dataclass
class Canvas:
    """A picture as a list of marks (boxes, text, curves, images), which is written to a file later.

    title, about: a title and a description for screen readers.
    margin: the margin around the marks, in points.
    marks: the marks, in drawing order.
    paper: the background and the fonts of an SVG file.

    >>> canvas = Canvas("A word")
    >>> canvas.words(0, 0, "cat")
    >>> canvas.size
    (41.0, 38.0)
    """

    title: str = ""
    about: str = ""
    margin: float = 12.0
    marks: list[Mark] = field(default_factory=list)
    paper: Paper = Paper()

    def box(self, x: float, y: float, width: float, height: float, fill: str, **more: object) -> None:
        self.marks.append(Box(x, y, width, height, fill, **more))  # type: ignore[arg-type]

    def words(self, x: float, y: float, text: str, size: float = SIZE, **more: object) -> None:
        if text:
            self.marks.append(Words(x, y, text, size, **more))  # type: ignore[arg-type]

    def line(self, x: float, y: float, to_x: float, to_y: float, **more: object) -> None:
        self.curve(((x, y), (x, y), (to_x, to_y), (to_x, to_y)), **more)

    def curve(self, points: tuple[tuple[float, float], ...], **more: object) -> None:
        self.marks.append(Curve(points, **more))  # type: ignore[arg-type]

    def cells(
        self,
        x: float,
        y: float,
        levels: NDArray[numpy.floating],
        width: float,
        height: float,
        gap: float = 1,
        texts: Sequence[Sequence[str]] = (),
    ) -> None:
        """Add a grid of cells. Cells with a larger level are darker.

        x, y: the top left corner of the grid.
        levels: (T, S), from 0 to 1. Negative levels, down to -1, have a second hue.
        width, height: the size of a cell, including the gap to the next cell.
        gap: the gap between cells.
        texts: the text in each cell, such as its weight. Default: no texts.

        A grid of more than MANY cells is drawn as one image.
        """
        rows, columns = levels.shape
        if rows * columns > MANY:
            self.raster(x, y, columns * width, rows * height, shades(levels))
        else:
            for row, column in numpy.ndindex(rows, columns):
                fill = shade(float(levels[row, column]))
                self.box(x + column * width, y + row * height, width - gap, height - gap, fill)
        for row, line in enumerate(texts):
            for column, text in enumerate(line):
                middle = x + (column + 0.5) * width - 0.5, y + (row + 0.5) * height - 0.5
                color = text_color_on(float(levels[row, column]))
                self.words(*middle, text, 8, anchor="middle", color=color)

    def raster(
        self, x: float, y: float, width: float, height: float, pixels: NDArray[numpy.uint8], **more: bool
    ) -> None:
        self.marks.append(Raster(x, y, width, height, pixels, **more))

    def head(self, title: str, *lines: str) -> None:
        """Add a title, and grey texts below it, above the existing marks.

        All texts are wrapped at the width of the existing marks, or at NARROWEST points if this is larger.
        """
        left, top, right, _ = self.bounds
        width = max(right - left, NARROWEST)
        for line in reversed([part for each in lines for part in wrapped(each, 8.5, width)]):
            self.words(left, top - 9, line, 8.5, color=QUIET)
            top -= 13
        for line in reversed(wrapped(title, 12, width)):
            self.words(left, top - 11, line, 12)
            top -= 16

    def foot(self, *lines: str) -> None:
        """Add grey texts below the existing marks.

        The texts are wrapped at the width of the existing marks, or at NARROWEST points if this is larger.
        """
        left, _, right, bottom = self.bounds
        parts = [part for each in lines for part in wrapped(each, 8, max(right - left, NARROWEST))]
        for number, line in enumerate(parts):
            self.words(left, bottom + 11 + 12 * number, line, 8, color=QUIET)

    def scale(self, x: float, y: float, most: float, least: float = 0.0, *, more: bool = False) -> None:
        """Add a legend: a bar with the colours of all weights, between the numbers `least` and `most`.

        x, y: the left end of the legend, and its vertical middle.
        more: whether weights larger than `most` have its colour too.
        """
        self.words(x, y, f"{least:.3g}", 8, color=QUIET)
        start = x + width_of(f"{least:.3g}", 8) + 4
        for step in range(24):
            level = step / 23 if least == 0 else 2 * step / 23 - 1
            self.box(start + 3 * step, y - 4, 3, 8, shade(level))
        self.words(start + 76, y, f"{most:.3g}{' or more' if more else ''}", 8, color=QUIET)

    def reserve(self, x: float, y: float) -> None:
        """Extend the bounds to a point, so that all frames of an animation have the same size."""
        self.line(x, y, x, y, color=WHITE, width=0.1)  # invisible

    def put(self, other: Canvas, x: float, y: float) -> None:
        """Add copies of all marks of another canvas, moved by (x, y)."""
        self.marks += [mark.moved(x, y) for mark in other.marks]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """The smallest rectangle around all marks of the picture, in points: (left, top, right, bottom)."""
        boxes = [mark.bounds for mark in self.marks] or [(0.0, 0.0, 0.0, 0.0)]
        lefts, tops, rights, bottoms = zip(*boxes, strict=True)
        return min(lefts), min(tops), max(rights), max(bottoms)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture in points, including the margin."""
        if self.paper.size is not None:
            return self.paper.size
        left, top, right, bottom = self.bounds
        width, height = math.ceil(right) - math.floor(left), math.ceil(bottom) - math.floor(top)
        return width + 2 * self.margin, height + 2 * self.margin

    @property
    def placed(self) -> list[Mark]:
        """The marks of the picture, moved so that the top left corner of the picture is at (0, 0).

        If `paper.size` is set, they are not moved.
        """
        if self.paper.size is not None:
            return self.marks
        left, top, _, _ = self.bounds
        return [
            mark.moved(self.margin - math.floor(left), self.margin - math.floor(top)) for mark in self.marks
        ]


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Wrap text to lines of at most `width` points. A word that is wider than a line is split.

    >>> wrapped("a cat sleeps", 10, 50)
    ['a cat', 'sleeps']
    """
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if width_of(longer, size) <= width:
            line = longer
            continue
        lines += [line] if line else []
        line = word
        while width_of(line, size) > width and len(line) > 1:
            most = max(end for end in range(1, len(line)) if end == 1 or width_of(line[:end], size) <= width)
            lines.append(line[:most])
            line = line[most:]
    return [*lines, line] if line else lines


def same_size(frames: list[Canvas]) -> list[Canvas]:
    """Give all canvases of an animation the same size, by adding a white background to each."""
    boxes = [canvas.bounds for canvas in frames]
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[2] for box in boxes), max(box[3] for box in boxes)
    background = Box(left, top, right - left, bottom - top, WHITE)
    return [replace(canvas, marks=[background, *canvas.marks]) for canvas in frames]
