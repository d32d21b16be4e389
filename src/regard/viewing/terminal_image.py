"""Draw an image and the attention of each word of its caption in the terminal, with coloured characters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from regard.viewing.image_attention import ImageAttention, resized
from regard.viewing.terminal import Drawing, Thumbnails, beside, pooled_down
from regard.viewing.terminal_colors import Shades, clean, cropped

__all__ = ["TerminalImage", "terminal_caption"]

WIDEST, TALLEST = 64, 24
"""Maximum size of an image in the terminal: WIDEST characters and TALLEST lines."""

MAP = 16
"""Maximum number of rows and columns in the drawing of an attention map. In a larger map, several cells are
drawn as one cell with the largest of their weights."""

WORDS, LONGEST = 40, 22
"""WORDS: maximum number of words with an attention map. LONGEST: maximum width of the word above its map, in
characters."""

LEGEND = "number: largest weight of the word; []: cell with this weight; shades: from 0 to this weight"


@dataclass(frozen=True, eq=False)
class TerminalImage(Drawing):
    """An image drawn in the terminal with coloured half blocks (▀).

    A half block shows two pixels, one above the other, so that pixels are almost square. If the terminal has
    no colours, one character such as ░ or █ shows the brightness of two pixels.

    image: uint8, (H, W, 3).

    >>> ramp = numpy.repeat(numpy.arange(0, 256, 85, dtype=numpy.uint8), 3).reshape(1, 4, 3)
    >>> print(TerminalImage(ramp.repeat(2, axis=0)))
     ░▓█
    """

    image: NDArray[numpy.uint8]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, self._size(options.max_width)[1])

    def _size(self, width: int) -> tuple[int, int]:
        """Return the number of lines and of characters per line with which the image is drawn.

        width: width of the console in characters.
        """
        high, wide = self.image.shape[:2]
        scale = min(1.0, min(WIDEST, width) / wide, 2 * TALLEST / high)
        return max(round(high * scale / 2), 1), max(int(wide * scale), 1)

    def lines(self, shades: Shades, width: int) -> Iterator[Text]:
        high, wide = self._size(width)
        if not shades.colour or shades.plain:
            light_hw = resized(self.image, high, wide) @ numpy.array([0.2126, 0.7152, 0.0722]) / 255
            for row in (light_hw * (len(shades.blocks) - 1)).round().astype(int):
                yield Text("".join(shades.blocks[level] for level in row))
            return
        small = resized(self.image, 2 * high, wide)
        for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
            line = Text()
            for above, below in zip(upper, lower, strict=True):
                line.append("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
            yield line


def terminal_caption(seen: ImageAttention) -> RenderableType:
    """Return an object that rich prints: the caption, the image, the attention map of each word, and notes.

    seen: the image with its caption and the attention of each word.

    >>> image = numpy.full((2, 4, 3), 255, numpy.uint8)
    >>> seen = ImageAttention(image, ["cat"], [[[0.25, 0.75]]])
    >>> Console(width=60, color_system=None).print(terminal_caption(seen))
    cat
    ████
    <BLANKLINE>
    cat 0.75
    ░░[]
    <BLANKLINE>
    number: largest weight of the word; []: cell with this weight; shades: from 0 to this weight
    """
    drawn: list[RenderableType] = [Text(clean(seen.heading), "bold"), TerminalImage(seen.image), Text()]
    drawn.append(beside(*(_map(seen, word) for word in range(min(len(seen.words), WORDS)))))
    notes = [LEGEND, *seen.uniform_note()]
    if len(seen.words) > WORDS:
        notes.append(f"shown: the first {WORDS} of {len(seen.words)} words")
    drawn += [Text(clean(note), "dim") for note in (*notes, *seen.notes)]
    return Group(*drawn)


def _map(seen: ImageAttention, word: int) -> Thumbnails:
    levels = pooled_down(seen.levels(word), MAP, MAP)
    name = f"{cropped(clean(seen.words[word]), LONGEST)} {seen.weights[word].max():.2g}"
    row, column = divmod(int(levels.argmax()), levels.shape[1])
    return Thumbnails(name, (levels,), None if seen.is_uniform(word) else (row, column), cell=2)
