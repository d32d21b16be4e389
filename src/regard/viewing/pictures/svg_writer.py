"""Write a canvas, or a drawing for the terminal, as an SVG file without JavaScript and external resources.

Text is stored as text, so that it can be searched and copied. The program that displays the file draws the
text with its own fonts. So all writing systems, emoji and writing directions work. The same picture gives the
same file on every machine.
"""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from html import escape

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from regard.viewing.pictures.canvas import MIDDLE, Box, Canvas, Curve, Mark, Paper, Raster, Words

FONTS = {
    "sans": "'DejaVu Sans', Verdana, 'Noto Sans', 'Noto Sans CJK KR', 'Noto Sans KR', 'Apple SD Gothic Neo', "
    "'Malgun Gothic', 'Hiragino Sans', 'Yu Gothic', 'PingFang SC', 'Microsoft YaHei', sans-serif",
    "monospace": "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Noto Sans Mono CJK KR', "
    "'Noto Sans CJK KR', NanumGothicCoding, 'Apple SD Gothic Neo', 'Malgun Gothic', monospace",
}
SMALL = 1 << 14
"""An image in an SVG file is compressed only if it has at least this number of bytes.

The output of zlib differs between machines. Without compression, the file is the same on every machine."""

_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# The SVG export of rich is not used: it gives wide characters the width of narrow characters, and it loads
# fonts from a CDN.
SIZE, CELL, LINE, MARGIN = 14, 8.4, 19, 14
WIDTH = 88
"""The width of a file in terminal cells, unless a drawing needs more (Drawing.least_width)."""
_DARK, _LIGHT = ColorTriplet(13, 15, 21), ColorTriplet(222, 225, 232)
_COLOURS = [
    *((13, 15, 21), (239, 108, 117), (122, 196, 152), (229, 192, 123)),
    *((97, 155, 222), (190, 132, 222), (86, 182, 194), (222, 225, 232)),
]
_THEME = TerminalTheme((13, 15, 21), (222, 225, 232), _COLOURS, [*_COLOURS[:-1], (255, 255, 255)])


def svg_of(canvas: Canvas, title: str = "") -> str:
    """Return a canvas as the text of an SVG file.

    title: a title for screen readers. Default: the title of the canvas.

    >>> from regard.viewing.pictures.canvas import Canvas
    >>> canvas = Canvas("One word")
    >>> canvas.words(0, 0, "<cat>")
    >>> "&lt;cat&gt;" in svg_of(canvas)
    True
    """
    width, height = (f"{size:g}" for size in canvas.size)
    about = f"<desc>{_text(canvas.about)}</desc>\n" if canvas.about else ""
    paper = canvas.paper
    font_size = f' font-size="{_n(paper.font_size)}"' if paper.font_size else ""
    corner = f' rx="{_n(paper.round)}"' if paper.round else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="{FONTS[paper.font]}"{font_size}>\n'
        f"<title>{_text(title or canvas.title)}</title>\n{about}"
        f'<rect width="100%" height="100%"{corner} fill="{paper.color}"/>\n'
        + "".join(f"{_tag(mark, paper)}\n" for mark in canvas.placed)
        + "</svg>\n"
    )


def png_of(pixels: NDArray[numpy.uint8]) -> bytes:
    """Return an image as the bytes of a PNG file, without any imaging library.

    pixels: (h, w, 3), RGB values.

    >>> import numpy
    >>> png_of(numpy.zeros((1, 1, 3), numpy.uint8))[:4]
    b'\\x89PNG'
    """
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in numpy.ascontiguousarray(pixels))
    level = 0 if len(rows) < SMALL else 9
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, level)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _tag(mark: Mark, paper: Paper) -> str:
    if isinstance(mark, Words):
        return _words(mark, paper)
    if isinstance(mark, Curve):
        (x, y), *rest = mark.points
        path = f"M{_n(x)} {_n(y)}C" + " ".join(f"{_n(left)} {_n(top)}" for left, top in rest)
        opacity = "" if mark.opacity == 1 else f' stroke-opacity="{mark.opacity:.2f}"'
        return (
            f'<path d="{path}" fill="none" stroke="{mark.color}" stroke-width="{_n(mark.width)}"{opacity} '
            'stroke-linecap="round"/>'
        )
    place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
    if isinstance(mark, Raster):
        drawn = "" if mark.smooth else ' style="image-rendering:pixelated"'
        data = base64.b64encode(png_of(mark.pixels)).decode()
        return f'<image {place} preserveAspectRatio="none"{drawn} href="data:image/png;base64,{data}"/>'
    corner = f' rx="{_n(mark.round)}"' if mark.round else ""
    edge = f' stroke="{mark.edge}"' if mark.edge else ""
    crisp = ' shape-rendering="crispEdges"' if mark.crisp else ""
    return f'<rect {place} fill="{mark.fill}"{corner}{edge}{crisp}/>'


def _words(mark: Words, paper: Paper) -> str:
    # Compute the baseline here, because programs interpret the attribute dominant-baseline differently.
    place = f'x="{_n(mark.x)}" y="{_n(mark.y + MIDDLE * mark.size)}"'
    size = "" if mark.size == paper.font_size else f' font-size="{_n(mark.size)}"'
    width = f' textLength="{_n(mark.width)}"' if mark.width is not None else ""
    weight = ' font-weight="bold"' if mark.bold else ""
    slant = ' font-style="italic"' if mark.italic else ""
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    turned = f' transform="rotate({_n(-mark.angle)} {_n(mark.x)} {_n(mark.y)})"' if mark.angle else ""
    style = f'{size}{width} fill="{mark.color}"{weight}{slant}{anchor}{turned}'
    return f"<text {place}{style}>{_text(mark.text)}</text>"


def _n(number: float) -> str:
    return f"{round(number, 2) + 0.0:g}"


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def to_svg(drawing: RenderableType, width: int | None = None, title: str = "") -> str:
    """Convert a drawing to the text of an SVG file.

    drawing: an object that rich can print. For a Picture, its method svg() is used.
    width: maximum width in terminal cells. Default: 88, or more if a drawing has more columns.
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


def to_canvas(drawing: RenderableType, width: int | None = None) -> Canvas:
    """Convert a drawing for the terminal to a canvas, which can be written to a file. See to_svg()."""
    if width is None:
        width = max(WIDTH, getattr(drawing, "least_width", 0))
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
