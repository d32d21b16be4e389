"""Convert terminal drawings to SVG: text stays text, on the character grid of the terminal, no web fonts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from html import escape

from rich.cells import cell_len
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

__all__ = ["to_svg"]

# rich's own SVG export gives wide characters the width of narrow ones, and loads fonts from a CDN.
FONTS = (
    "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Noto Sans Mono CJK KR', 'Noto Sans CJK KR', "
    "NanumGothicCoding, 'Apple SD Gothic Neo', 'Malgun Gothic', monospace"
)
SIZE, CELL, LINE, MARGIN = 14, 8.4, 19, 14
_DARK, _LIGHT = ColorTriplet(13, 15, 21), ColorTriplet(222, 225, 232)
_COLOURS = [
    *((13, 15, 21), (239, 108, 117), (122, 196, 152), (229, 192, 123)),
    *((97, 155, 222), (190, 132, 222), (86, 182, 194), (222, 225, 232)),
]
_THEME = TerminalTheme((13, 15, 21), (222, 225, 232), _COLOURS, [*_COLOURS[:-1], (255, 255, 255)])
_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_svg(drawing: RenderableType, width: int = 88, title: str = "") -> str:
    """Return anything that rich can print as the text of an SVG file; a Picture returns its own SVG.

    width: maximum width in terminal cells. title: the <title> of the SVG, read by screen readers.

    >>> from regard.viewing import draw, to_svg
    >>> picture = to_svg(draw([[0.9, 0.1]], ["I"], ["나는", "고양이"]))
    >>> picture.startswith("<svg"), "고양이" in picture
    (True, True)
    """
    own = getattr(drawing, "svg", None)
    if callable(own):
        return str(own(title=title))
    console = Console(file=io.StringIO(), width=width, color_system="truecolor", force_terminal=True)
    lines = list(Segment.split_lines(console.render(drawing)))
    while lines and not _end(lines[-1]):
        lines.pop()
    cells = max((_end(line) for line in lines), default=0)
    wide, high = cells * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    body = "\n".join(tag for number, line in enumerate(lines) for tag in _tags(line, number))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" '
        f'height="{high:g}" role="img" font-family="{FONTS}" font-size="{SIZE}">\n'
        f"<title>{_text(title)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{_DARK.hex}"/>\n'
        f"{body}\n</svg>\n"
    )


def _tags(line: list[Segment], number: int) -> Iterator[str]:
    """Yield the background rectangles of one line, then its words, each stretched to its terminal cells."""
    top, shades, words, cell = MARGIN + number * LINE, [], [], 0
    for segment in line:
        style = segment.style or Style()
        color, background = _colours(style)
        length = cell_len(segment.text)
        if background is not None:
            place = f'x="{MARGIN + cell * CELL:g}" y="{top:g}" width="{length * CELL:g}" height="{LINE}"'
            shades.append(f'<rect {place} fill="{background.hex}" shape-rendering="crispEdges"/>')
        weight = ' font-weight="bold"' if style.bold else ""
        slant = ' font-style="italic"' if style.italic else ""
        for word in re.finditer(r"[^ ]+", segment.text):
            x = MARGIN + (cell + cell_len(segment.text[: word.start()])) * CELL
            place = f'x="{x:g}" y="{top + SIZE:g}" textLength="{cell_len(word[0]) * CELL:g}"'
            words.append(f'<text {place} fill="{color.hex}"{weight}{slant}>{_text(word[0])}</text>')
        cell += length
    yield from shades
    yield from words


def _colours(style: Style) -> tuple[ColorTriplet, ColorTriplet | None]:
    color = _LIGHT if style.color is None or style.color.is_default else style.color.get_truecolor(_THEME)
    background = (
        None if style.bgcolor is None or style.bgcolor.is_default else style.bgcolor.get_truecolor(_THEME)
    )
    if style.dim:
        color = blend_rgb(color, background or _DARK, 0.4)
    return color, background


def _end(line: list[Segment]) -> int:
    """Return the width of a line in cells, without trailing blanks."""
    end = cell = 0
    for segment in line:
        shaded = segment.style is not None and segment.style.bgcolor is not None
        text = segment.text if shaded else segment.text.rstrip()
        end = cell + cell_len(text) if text else end
        cell += cell_len(segment.text)
    return end


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
