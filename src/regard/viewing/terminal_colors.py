"""Show a weight as a terminal colour or a block character, and make tokens safe to print."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.style import Style

# The lightness increases from colour to colour, so that the scale also works in greyscale.
_RAMP = ((20, 23, 31), (33, 60, 96), (38, 122, 142), (122, 196, 152), (253, 246, 208))


class Shades:
    """Chooses how weights are shown in a console: as background colours or as characters.

    If the console has fewer than 256 colours, weights are shown by block characters (░▒▓█). If the encoding
    of the console has no block characters, they are shown by .:*#.
    """

    def __init__(self, console: Console, options: ConsoleOptions):
        self.colour = console.color_system in ("256", "truecolor") and not console.no_color
        self.plain = options.ascii_only
        self.blocks = " .:*#" if options.ascii_only else " ░▒▓█"
        self.nothing = "." if options.ascii_only else "·"

    def cell(self, level: float, width: int, number: str = "") -> tuple[str, Style]:
        """Return the text and the style (colours) of one cell of a matrix of weights.

        level: the weight as a fraction of the largest weight, from 0 to 1, or NaN.
        width: the width of the cell in terminal cells (widths of one narrow character).
        number: the weight as text, to write in the cell. "": no text.
        """
        if level != level:
            return "?".center(width), Style()
        if self.colour:
            color = "black" if level > 0.6 else "bright_white"
            return number.center(width), Style(bgcolor=ramp(level), color=color)
        block = self.blocks[round(level * 4)]
        if number:
            room = width - 3 - (len(number) > 3)  # 1.00 is longer than .97, but must not hide the block
            padded = f" {number} " if len(number) <= room else number
            return padded.center(width - 1, block) + " ", Style()
        if block == " ":
            return self.nothing.center(width), Style(dim=True)
        return (block * max(width - 1, 1)).ljust(width), Style()

    def bar(self, level: float, width: int) -> tuple[str, Style]:
        """Return the text and style of a bar of level * width terminal cells, rounded to half a cell.

        level: the weight as a fraction of the weight of a bar of full length.
        width: the full length in terminal cells.
        """
        whole, half = divmod(round(level * width * 2) if level == level else 0, 2)
        if self.plain:
            return "#" * (whole + half), Style()
        return "━" * whole + "╸" * half, Style(color=ramp(0.65) if self.colour else None)


def ramp(level: float) -> Color:
    """Return the terminal colour of a weight. level: the weight as a fraction of the largest weight."""
    place = min(max(level, 0.0), 1.0) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    mixed = (a + (b - a) * (place - low) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    red, green, blue = map(round, mixed)
    return Color.from_rgb(red, green, blue)


def clean(token: object, kept: str = "") -> str:
    """Return a token as one line of printable text. Control characters are written as Python escapes.

    kept: control characters that are not escaped.
    """
    text = unicodedata.normalize("NFC", str(token))
    if text.isprintable():
        return text
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in _CONTROL and c not in kept else c for c in text
    )


_CONTROL = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def cropped(text: str, width: int) -> str:
    """Return the text, truncated with an ellipsis if it is wider than `width` terminal cells."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
