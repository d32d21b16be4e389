"""Draw an image and the attention of each word of its caption: panels side by side, or an animation.

The layout is the layout of figures 2 and 5 of Xu et al. (2015): the attention map of a word is interpolated
to the size of the image. Here, the image is also dimmed where the weight is 0, and the cell with the largest
weight is outlined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import RenderableType

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import as_numpy
from regard.viewing.image_attention import ImageAttention, resized
from regard.viewing.image_cells import CellGrid, upsampled
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import DARK, QUIET, label, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal_image import terminal_caption

__all__ = ["caption_animation", "caption_panels", "gaze", "panel_size", "shaded_image"]

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

MOVING, TEXT, LINE, SPACE = 260.0, 12.0, 18.0, 5.0
"""Layout of animations. MOVING: length of the longer side of the image. TEXT: font size of the caption. LINE:
height of a line of the caption. SPACE: distance between words. All in points."""

MOVING_PIXELS = 4_000_000
"""Maximum number of pixels of the images of all frames together."""

SCALE_NOTE = (
    "brightness: linear from weight 0 (dimmed) to the largest weight of the word, which is printed "
    "beside the word; outlined: the cell with the largest weight"
)


def gaze(image: Any, weights: Any, words: Sequence[object], title: str = "", about: str = "") -> Picture:
    """Draw an image, and a copy for each word that is bright where its weights are large (Xu et al. 2015).

    image: (height, width) or (height, width, 3), values from 0 to 1 or from 0 to 255.
    weights: (T, h, w), the attention weights of each word for h x w regions of the image. They are
        interpolated to the size of the image.
    words: T words.
    title: a title.
    about: a line below the picture.

    >>> from regard.viewing import gaze
    >>> image = numpy.linspace(0, 1, 64).reshape(8, 8)
    >>> gaze(image, numpy.eye(4).reshape(4, 2, 2), ["a", "cat", "sits", "."]).frames[0].about
    '4 words over an image of 8 x 8 pixels; 2 x 2 cells'
    """
    pixels = as_numpy(image)
    if pixels.ndim == 2:
        pixels = numpy.repeat(pixels[..., None], 3, axis=-1)
    if pixels.dtype != numpy.uint8 and pixels.size:
        pixels = (pixels if pixels.max() > 1.5 else 255 * pixels).clip(0, 255).round().astype(numpy.uint8)
    pixels = pixels[..., :3] if pixels.shape[-1] == 4 else pixels  # without transparency
    seen = ImageAttention(pixels, list(map(str, words)), weights, title=title)
    return caption_panels(seen.noted(about) if about else seen)


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


def caption_animation(seen: ImageAttention, seconds: float = 0.8) -> Picture:
    """Draw an animation of a caption, with one frame for each word.

    In each frame, the image is bright where the word attends. Below the image is the caption up to this word.
    The first frame is the image alone. All frames have the same size.

    seen: the image with its caption and the attention of each word.
    seconds: how long each frame is shown, from 0.05 to 60.

    >>> image = numpy.full((8, 8, 3), 128, numpy.uint8)
    >>> len(caption_animation(ImageAttention(image, ["a", "cat"], numpy.ones((2, 1, 1)))).frames)
    3
    """
    if not 0.05 <= seconds <= 60:
        problem = f"seconds is {seconds}"
        raise ArgumentError(message("animation()", problem, expected="a number from 0.05 to 60"))
    size = panel_size(seen, MOVING_PIXELS / (len(seen.words) + 1))
    small = resized(seen.image, *size)
    wide, high = (MOVING * each / max(size) for each in (size[1], size[0]))
    places = _placed([label(word, 40) for word in seen.words], max(wide, MOVING))
    frames = []
    for now in range(-1, len(seen.words)):
        canvas = Canvas(label(seen.heading, 200), "the image" if now < 0 else label(seen.words[now], 40))
        pixels = small if now < 0 else shaded_image(small, seen.levels(now))
        canvas.raster(0, 0, wide, high, pixels, smooth=True)
        if now >= 0:
            outline(canvas, seen, now, 0, 0, wide, high)
            most = f"largest weight {seen.weights[now].max():.2g}"
            canvas.words(0, high + 10, most, 8, color=QUIET)
        for place, (x, line, word) in enumerate(places[: now + 1]):
            color = DARK if place == now else QUIET
            canvas.words(x, high + 30 + line * LINE, word, TEXT, color=color)
            if place == now:
                below = high + 30 + line * LINE + 9
                canvas.line(x, below, x + width_of(word, TEXT), below, color=MARK, width=1.5)
        _reserve(canvas, max(wide, MOVING), high + 30 + (places[-1][1] + 1) * LINE)
        note = SCALE_NOTE.replace("beside the word", "below the image")
        canvas.foot(note, *(label(each, 400) for each in (*seen.uniform_note(), *seen.notes)))
        frames.append(canvas)
    return Picture(frames, terminal_caption(seen), seconds)


def _placed(words: list[str], width: float) -> list[tuple[float, int, str]]:
    """Wrap the words of a caption to lines.

    Returns (x, line, word) for each word: its left end in points, the index of its line, and its text.

    width: maximum width of a line, in points.
    """
    places, x, line = [], 0.0, 0
    for word in words:
        wide = width_of(word, TEXT)
        if x and x + wide > width:
            x, line = 0.0, line + 1
        places.append((x, line, word))
        x += wide + SPACE
    return places


def _reserve(canvas: Canvas, width: float, height: float) -> None:
    """Extend the bounds of a frame to (width, height), so that all frames have the same size.

    For this, an invisible white line is drawn at this point. Notes that are added later are below the line.
    """
    canvas.line(width, height, width, height, color="#ffffff", width=0.1)
