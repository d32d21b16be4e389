"""The colours of pictures, and an estimate of the width of a text without reading font files.

Larger numbers have darker colours, so that pictures work in greyscale, in print and for colour-blind readers.
Negative numbers have a second hue, and their minus sign is always printed.
"""

from __future__ import annotations

import functools
import unicodedata

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
