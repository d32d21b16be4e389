"""Shades: a weight as a colour, or as a character where there is no colour. Tokens as text that is safe."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.style import Style

__all__ = ["Shades", "clean", "cropped", "ramp"]

# Dark to light, each lighter than the one before it, so that it reads the same in grey.
_RAMP = ((20, 23, 31), (33, 60, 96), (38, 122, 142), (122, 196, 152), (253, 246, 208))


class Shades:
    """How deep a cell is drawn on this console: in colour where it has 256 of them, else with characters."""

    def __init__(self, console: Console, options: ConsoleOptions):
        self.colour = console.color_system in ("256", "truecolor") and not console.no_color
        self.plain = options.ascii_only
        self.blocks = " .:*#" if options.ascii_only else " ░▒▓█"
        self.nothing = "." if options.ascii_only else "·"

    def cell(self, level: float, width: int, number: str = "") -> tuple[str, Style]:
        """One cell of a matrix: level from 0 to 1, or NaN."""
        if level != level:
            return "?".center(width), Style()
        if self.colour:
            ink = "black" if level > 0.6 else "bright_white"
            return number.center(width), Style(bgcolor=ramp(level), color=ink)
        block = self.blocks[round(level * 4)]
        if number:
            roomy = f" {number} " if len(number) + 3 <= width else number
            return roomy.center(width - 1, block) + " ", Style()
        if block == " ":
            return self.nothing.center(width), Style(dim=True)
        return (block * max(width - 1, 1)).ljust(width), Style()

    def bar(self, level: float, width: int) -> tuple[str, Style]:
        """A bar of this length, to half a cell."""
        whole, half = divmod(round(level * width * 2) if level == level else 0, 2)
        if self.plain:
            return "#" * (whole + half), Style()
        return "━" * whole + "╸" * half, Style(color=ramp(0.65) if self.colour else None)


def ramp(level: float) -> Color:
    """The colour of a level from 0 to 1."""
    place = min(max(level, 0.0), 1.0) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    mixed = (a + (b - a) * (place - low) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    red, green, blue = map(round, mixed)
    return Color.from_rgb(red, green, blue)


def clean(token: object, kept: str = "") -> str:
    """A token as one line of text to be shown and never obeyed: control characters as Python writes them.

    kept: characters that are left as they are all the same.
    """
    text = unicodedata.normalize("NFC", str(token))
    if text.isprintable():
        return text
    obeyed = (unicodedata.category(c) in _OBEYED and c not in kept for c in text)
    return "".join(ascii(c)[1:-1] if spell else c for c, spell in zip(text, obeyed, strict=True))


_OBEYED = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def cropped(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider than this many cells of the terminal."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
