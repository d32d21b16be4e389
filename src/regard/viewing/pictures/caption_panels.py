"""caption_panels(): draw a copy of an image for each word of its caption, bright where the word attends.

The layout is the layout of figures 2 and 5 of Xu et al. (2015): the attention map of a word is interpolated
to the size of the image. Here, the image is also dimmed where the weight is 0, and the cell with the largest
weight is outlined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
from numpy.typing import NDArray
from rich.console import RenderableType

from regard.viewing.image_attention import ImageAttention, resized
from regard.viewing.image_cells import CellGrid, upsampled
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import QUIET, label
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal_image import terminal_caption

__all__ = ["MARK", "SCALE_NOTE", "caption_panels", "outline", "panel_size", "shaded_image"]

SIDE, NARROWEST, GAP, ACROSS = 118.0, 100.0, 12.0, 5
"""Layout of the panels (the image, and a copy of it for each word). Lengths are in points.

SIDE: length of the longer side of a panel.
NARROWEST: minimum width of a column of panels, so that a word and its weight fit.
GAP: distance between panels.
ACROSS: number of panels in a row."""

LARGEST, SMALLEST, PIXELS = 256, 64, 1_000_000
"""Sizes in pixels of a panel (the copy of the image for one word). LARGEST is the maximum width and height.
If all panels together would have more than PIXELS pixels, they are made smaller. But the longer side of a
panel has at least SMALLEST pixels."""

DIM, BRIGHT, GLOW = 0.3, 0.85, 0.15
"""How the attention changes the brightness p of a pixel. It becomes DIM * p where the weight is 0, and BRIGHT
* p + GLOW where the weight is largest. Because of GLOW, the map is also visible in black regions."""

MARK = "#f28e2b"
"""The colour of the outline of the cell with the largest weight."""

SCALE_NOTE = (
    "brightness: linear from weight 0 (dimmed) to the largest weight of the word, which is printed "
    "beside the word; outlined: the cell with the largest weight"
)


def caption_panels(seen: ImageAttention, *, pixels: int = PIXELS) -> Picture:
    """Draw an image, and a copy for each word of its caption that is bright where the word attends.

    seen: the image with its caption and the attention of each word.
    pixels: maximum number of pixels of all copies together, to limit the size of files.

    >>> image = numpy.full((32, 48, 3), 128, numpy.uint8)
    >>> seen = ImageAttention(image, ["a", "cat"], numpy.eye(2).reshape(2, 1, 2))
    >>> picture = caption_panels(seen)
    >>> picture.frames[0].about
    '2 words over an image of 32 x 48 pixels; 1 x 2 cells'
    """
    canvas = Canvas(label(seen.heading, 200))
    size = panel_size(seen, pixels / (len(seen.words) + 1))
    small = resized(seen.image, *size)
    wide, high = (SIDE * each / max(size) for each in (size[1], size[0]))
    step_x, step_y = max(wide, NARROWEST) + GAP, high + GAP + 16
    canvas.raster(0, 16, wide, high, small, smooth=True)
    canvas.words(0, 6, "image", 9, color=QUIET)
    for number, word in enumerate(seen.words):
        place = number + 1
        x, y = place % ACROSS * step_x, place // ACROSS * step_y
        canvas.raster(x, y + 16, wide, high, shaded_image(small, seen.levels(number)), smooth=True)
        outline(canvas, seen, number, x, y + 16, wide, high)
        canvas.words(x, y + 6, label(word, 12), 9)
        most = f"{seen.weights[number].max():.2g}"
        canvas.words(x + step_x - GAP, y + 6, most, 8, color=QUIET, anchor="end")
    bottom = (len(seen.words) // ACROSS + 1) * step_y
    _scale(canvas, 0, bottom)
    canvas.foot(*(label(note, 400) for note in (SCALE_NOTE, *seen.uniform_note(), *seen.notes)))
    canvas.head(label(seen.heading, 200))
    (rows, columns), (height, width) = seen.weights.shape[1:], seen.image.shape[:2]
    words = f"{len(seen.words)} word{'s' * (len(seen.words) != 1)}"
    canvas.about = f"{words} over an image of {height} x {width} pixels; {rows} x {columns} cells"
    return CaptionPicture(canvas, terminal_caption(seen), seen.animation)


class CaptionPicture(Picture):
    """A picture with a copy of the image for each word of a caption. As GIF, it is an animation.

    canvas: the drawing of all copies of the image.
    terminal: what rich prints in a terminal.
    animation: a function that returns the animation.
    """

    def __init__(self, canvas: Canvas, terminal: RenderableType, animation: Callable[[], Picture]):
        super().__init__([canvas], terminal)
        self._animation = animation

    def gif(self) -> bytes:
        """Return the animation of the caption, with a frame for each word, as the bytes of a GIF file."""
        return self._animation().gif()


def panel_size(seen: ImageAttention, pixels: float) -> tuple[int, int]:
    """Return the height and width in pixels with which an image is drawn.

    There are at least as many rows and columns of pixels as of cells in the attention maps.

    seen: the image with its caption and the attention of each word.
    pixels: maximum number of pixels of the drawn image.
    """
    height, width = seen.image.shape[:2]
    sides = max(height, width), min(height, width)
    longest = max(min(sides[0], LARGEST, int((pixels * sides[0] / sides[1]) ** 0.5)), SMALLEST)
    rows, columns = seen.weights.shape[1:]
    scale = longest / max(height, width)
    return max(round(height * scale), rows), max(round(width * scale), columns)


def shaded_image(image: NDArray[numpy.uint8], levels: NDArray[numpy.float64]) -> NDArray[numpy.uint8]:
    """Return a copy of an image, bright where attention weights are large and dimmed where they are 0.

    image: uint8, (H, W, 3).
    levels: (h, w), the attention weights divided by the largest weight. They are interpolated to H x W
        pixels.

    >>> white = numpy.full((1, 2, 3), 255, numpy.uint8)
    >>> shaded_image(white, numpy.array([[0.0, 1.0]]))[0, :, 0].tolist()
    [76, 255]
    """
    level_HW1 = upsampled(levels, *image.shape[:2])[..., None]
    shaded = image * (DIM + (BRIGHT - DIM) * level_HW1) + 255 * GLOW * level_HW1
    return numpy.clip(shaded.round(), 0, 255).astype(numpy.uint8)


def outline(
    canvas: Canvas, seen: ImageAttention, word: int, x: float, y: float, width: float, height: float
) -> None:
    """Outline the cell with the largest attention weight of a word, over an image drawn on a canvas.

    Nothing is drawn if the weights of the word are nearly uniform, see ImageAttention.is_uniform().

    seen: the image with its caption and the attention of each word.
    word: index of the word, from 0.
    x, y, width, height: left, top, width and height of the drawn image, in points.
    """
    if seen.is_uniform(word):
        return
    rows, columns = seen.weights.shape[1:]
    # In this grid, each cell is one pixel. So box() returns the position of the cell in cells, not in pixels.
    box = CellGrid(rows, columns, rows, columns).box(seen.strongest(word))
    left, right = (x + width * column / columns for column in (box.left, box.right))
    top, bottom = (y + height * row / rows for row in (box.top, box.bottom))
    for start, end in (
        ((left, top), (right, top)),
        ((right, top), (right, bottom)),
        ((right, bottom), (left, bottom)),
        ((left, bottom), (left, top)),
    ):
        canvas.line(*start, *end, color=MARK, width=1.0)


def _scale(canvas: Canvas, x: float, y: float) -> None:
    """Draw the legend at (x, y): a grey bar whose brightness goes from weight 0 to the largest weight."""
    levels = numpy.linspace(0, 1, 24)[None]
    grey = numpy.full((1, 24, 3), 160, numpy.uint8)
    canvas.words(x, y, "0", 8, color=QUIET)
    canvas.raster(x + 10, y - 4, 72, 8, shaded_image(grey, levels))
    canvas.words(x + 86, y, "largest weight of the word", 8, color=QUIET)
