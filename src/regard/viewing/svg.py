"""Convert terminal drawings to SVG. Text remains text, placed on the character grid of a terminal."""

from __future__ import annotations

import io
import re

from rich.cells import cell_len
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from regard.viewing.pictures.canvas import MIDDLE, Box, Canvas, Mark, Paper, Words
from regard.viewing.pictures.svg_writer import svg_of

__all__ = ["to_svg"]

# The SVG export of rich is not used: it gives wide characters the width of narrow characters, and it loads
# fonts from a CDN.
SIZE, CELL, LINE, MARGIN = 14, 8.4, 19, 14
_DARK, _LIGHT = ColorTriplet(13, 15, 21), ColorTriplet(222, 225, 232)
_COLOURS = [
    *((13, 15, 21), (239, 108, 117), (122, 196, 152), (229, 192, 123)),
    *((97, 155, 222), (190, 132, 222), (86, 182, 194), (222, 225, 232)),
]
_THEME = TerminalTheme((13, 15, 21), (222, 225, 232), _COLOURS, [*_COLOURS[:-1], (255, 255, 255)])


def to_svg(drawing: RenderableType, width: int = 88, title: str = "") -> str:
    """Convert a drawing to the text of an SVG file.

    drawing: an object that rich can print. For a Picture, its method svg() is used.
    width: maximum width in terminal cells.
    title: the <title> of the SVG, read by screen readers.

    >>> from regard.viewing import draw, to_svg
    >>> picture = to_svg(draw([[0.9, 0.1]], ["I"], ["나는", "고양이"]))
    >>> picture.startswith("<svg"), "고양이" in picture
    (True, True)
    """
    own = getattr(drawing, "svg", None)
    if callable(own):
        return str(own(title=title))
    return svg_of(to_canvas(drawing, width), title)


def to_canvas(drawing: RenderableType, width: int = 88) -> Canvas:
    """Convert a drawing for the terminal to a canvas, which can be written to a file. See to_svg()."""
    console = Console(file=io.StringIO(), width=width, color_system="truecolor", force_terminal=True)
    lines = list(Segment.split_lines(console.render(drawing)))
    while lines and not _end(lines[-1]):
        lines.pop()
    cells = max((_end(line) for line in lines), default=0)
    size = cells * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    marks = [mark for number, line in enumerate(lines) for mark in _marks(line, MARGIN + number * LINE)]
    return Canvas(marks=marks, paper=Paper(_DARK.hex, 8, "monospace", SIZE, size))


def _marks(line: list[Segment], top: float) -> list[Mark]:
    """Return the marks (parts of an SVG picture) of one line of text: background boxes, then words.

    Each word is stretched to the width of its terminal cells.

    top: vertical position of the line.
    """
    boxes: list[Mark] = []
    words: list[Mark] = []
    middle, cell = top + SIZE * (1 - MIDDLE), 0
    for segment in line:
        style = segment.style or Style()
        color, background = _colours(style)
        length = cell_len(segment.text)
        if background is not None:
            boxes.append(Box(MARGIN + cell * CELL, top, length * CELL, LINE, background.hex, crisp=True))
        bold, italic = bool(style.bold), bool(style.italic)
        for word in re.finditer(r"[^ ]+", segment.text):
            x = MARGIN + (cell + cell_len(segment.text[: word.start()])) * CELL
            width = cell_len(word[0]) * CELL
            text = Words(x, middle, word[0], SIZE, color.hex, width=width, bold=bold, italic=italic)
            words.append(text)
        cell += length
    return boxes + words


def _colours(style: Style) -> tuple[ColorTriplet, ColorTriplet | None]:
    color = _LIGHT if style.color is None or style.color.is_default else style.color.get_truecolor(_THEME)
    background = (
        None if style.bgcolor is None or style.bgcolor.is_default else style.bgcolor.get_truecolor(_THEME)
    )
    if style.dim:
        color = blend_rgb(color, background or _DARK, 0.4)
    return color, background


def _end(line: list[Segment]) -> int:
    """Return the width of a line in terminal cells, without the spaces at its end.

    Spaces with a background colour count, because they are visible.
    """
    end = cell = 0
    for segment in line:
        shaded = segment.style is not None and segment.style.bgcolor is not None
        text = segment.text if shaded else segment.text.rstrip()
        end = cell + cell_len(text) if text else end
        cell += cell_len(segment.text)
    return end
