"""Ink: the colours of pictures, and how much room text takes before any font is opened.

Depth is told by lightness alone, so that a picture reads the same in grey, in print and for every eye; hue
only helps. Numbers below 0 turn to a second hue, and wherever they are drawn their minus is printed.
"""

from __future__ import annotations

import unicodedata

import numpy
from numpy.typing import NDArray

from regard.viewing.terminal_colors import clean, cropped

__all__ = ["DARK", "FAINT", "LINK", "QUIET", "WHITE", "label", "text_color_on", "shade", "shades", "width_of"]

WHITE, DARK, QUIET, FAINT = "#ffffff", "#1b2030", "#69707f", "#dfe2e8"
LINK = "#1f6287"
"""Of lines between words."""

_DEEPER = numpy.array(
    [(245, 246, 248), (205, 228, 217), (116, 187, 178), (40, 122, 146), (30, 61, 102), (14, 18, 34)], float
)
_BELOW = numpy.array([(245, 246, 248), (250, 219, 190), (238, 160, 96), (193, 96, 35), (122, 50, 12)], float)

_WIDTHS = {
    **dict.fromkeys(" !'(),-./:;I[]\\ijl|ftrJ", 0.36),
    **dict.fromkeys("mwMW%@#&+<=>^~", 0.95),
    **dict.fromkeys("ABCDGHKNOPQRSTUVXYZ", 0.73),
}
_NARROW, _WIDE = 0.63, 1.0
"""The widths of DejaVu Sans, which comes with matplotlib and is wider than most; for an em of 1."""

_MARKS = ("Mn", "Me", "Cf")


def shades(levels: NDArray[numpy.floating]) -> NDArray[numpy.uint8]:
    """The colours, (..., 3), of levels from 0 to 1; from 0 to -1, those of numbers below 0; NaN is grey.

    >>> import numpy
    >>> shades(numpy.array([0.0, 1.0])).tolist()
    [[245, 246, 248], [14, 18, 34]]
    """
    levels = numpy.asarray(levels, float)
    unknown = numpy.isnan(levels)
    known = numpy.clip(numpy.where(unknown, 0.0, levels), -1.0, 1.0)
    found = numpy.where(known[..., None] < 0, _mixed(_BELOW, -known), _mixed(_DEEPER, known))
    found[unknown] = (190, 190, 190)
    return found.round().astype(numpy.uint8)


def shade(level: float) -> str:
    """The colour of one level, as SVG and matplotlib write it."""
    red, green, blue = shades(numpy.array(level)).tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_color_on(level: float) -> str:
    """The colour of what is written on a cell of this level."""
    return WHITE if abs(level) > 0.52 else DARK


def width_of(text: str, size: float) -> float:
    """About how wide a text is, in points; rather more than less.

    >>> width_of("고양이", 10), width_of("i", 10)
    (30.0, 3.6)
    """
    return round(size * sum(map(_character, text)), 2)


def label(word: object, longest: int = 28) -> str:
    """A word as it is drawn: what would be obeyed is spelled out, and no word is longer than this many cells.

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
