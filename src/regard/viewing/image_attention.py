"""ImageAttention: the attention of every word of a caption over an image, as arrays, pictures and pages.

The layout of pictures is the layout of figures 2 and 5 of Xu et al. (2015): the attention map of a word is
interpolated to the size of the image. Here, the image is also dimmed where the weight is 0, and the cell with
the largest weight is outlined.

Pages make no network requests. If the reader points at a word, or selects it with Tab and the arrow keys, the
page shows the attention of the word over the image. If the reader points at a cell of the image, the page
shows which words attend to this cell. Without JavaScript, the page shows a panel for each word. Text is
escaped, and the attention weights are numbers in base64.

A map of h x w weights divides an image of H x W pixels into cells, see CellGrid. Cells are numbered row by
row from the top left: cell (i, j) has the number i * w + j. A pixel belongs to the cell that contains the
centre of the pixel. So every pixel is in exactly one cell, also if h does not divide H.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import as_numpy, checked_weights
from regard.viewing.html_document import Page, article_page, fragment_of, image_uri, safe, save_html
from regard.viewing.pictures.canvas import DARK, QUIET, Canvas, label, width_of
from regard.viewing.pictures.picture_files import Illustrated, Picture
from regard.viewing.pictures.svg_writer import png_of
from regard.viewing.terminal import Drawing, Thumbnails, beside, pooled_down
from regard.viewing.terminal_colors import Shades, clean, cropped

PLATEAU = 0.1
"""Up to this distance from the centre of a cell, upsampled() returns the weight of the cell unchanged. The
distance is a fraction of the width (or height) of the cell."""


class PixelBox(NamedTuple):
    """A rectangle of pixels of an image: rows top, ..., bottom - 1 and columns left, ..., right - 1."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True)
class CellGrid:
    """The division of an image of height x width pixels into rows x columns cells of about equal size.

    Cells are numbered from 0, row by row from the top left.

    rows: number of rows of cells.
    columns: number of columns of cells.
    height: height of the image in pixels.
    width: width of the image in pixels.

    >>> grid = CellGrid(rows=2, columns=2, height=6, width=4)
    >>> grid.box(2)
    PixelBox(top=3, left=0, bottom=6, right=2)
    >>> grid.cell_at(2, 3), grid.position(1)
    (1, (0, 1))
    >>> grid.mask([0]).sum().item()
    6
    """

    rows: int
    columns: int
    height: int
    width: int

    def __post_init__(self) -> None:
        cells, pixels = (self.rows, self.columns), (self.height, self.width)
        if min(cells) < 1 or any(many > size for many, size in zip(cells, pixels, strict=True)):
            problem = f"{self.rows} x {self.columns} cells do not fit {self.height} x {self.width} pixels"
            expected = "at least one cell, and at least one pixel in each cell"
            raise ArgumentError(message("CellGrid()", problem, expected=expected))

    @property
    def count(self) -> int:
        """The number of cells into which the image is divided: rows x columns."""
        return self.rows * self.columns

    def position(self, cell: int) -> tuple[int, int]:
        """Return the row and the column, from 0, of the cell with the number `cell`."""
        if not 0 <= cell < self.count:
            expected = f"0, ..., {self.count - 1}"
            raise ArgumentError(message("CellGrid", f"there is no cell {cell}", expected=expected))
        return cell // self.columns, cell % self.columns

    def box(self, cell: int) -> PixelBox:
        """Return the rectangle of pixels that a cell covers. cell: number of the cell."""
        row, column = self.position(cell)
        return PixelBox(
            _first(row, self.rows, self.height),
            _first(column, self.columns, self.width),
            _first(row + 1, self.rows, self.height),
            _first(column + 1, self.columns, self.width),
        )

    def cell_at(self, row: int, column: int) -> int:
        """Return the number of the cell that covers the pixel in this row and column of the image."""
        if not (0 <= row < self.height and 0 <= column < self.width):
            problem = f"pixel ({row}, {column}) is outside the image of {self.height} x {self.width} pixels"
            raise ArgumentError(message("CellGrid.cell_at()", problem))
        i, j = _cell(row, self.rows, self.height), _cell(column, self.columns, self.width)
        return int(i * self.columns + j)

    def cells(self) -> NDArray[numpy.int64]:
        """Return an integer array (height, width) with the number of the cell that each pixel is in."""
        rows = _cell(numpy.arange(self.height), self.rows, self.height)
        columns = _cell(numpy.arange(self.width), self.columns, self.width)
        return rows[:, None] * self.columns + columns[None, :]

    def mask(self, cells: Iterable[int]) -> NDArray[numpy.bool_]:
        """Return a bool array (height, width): True for each pixel in one of the cells.

        cells: numbers of cells.
        """
        mask_HW = numpy.zeros((self.height, self.width), bool)
        for cell in cells:
            top, left, bottom, right = self.box(cell)
            mask_HW[top:bottom, left:right] = True
        return mask_HW


def _first(cell: int, cells: int, pixels: int) -> int:
    """Return the index of the first pixel of a cell, along one side of the image.

    This is the first pixel whose centre is not before cell * pixels / cells.

    cell: index of the cell along this side.
    cells: number of cells along this side.
    pixels: number of pixels along this side.
    """
    return -((cells - 2 * cell * pixels) // (2 * cells))


def _cell(pixel: Any, cells: int, pixels: int) -> Any:
    """Return the index of the cell that contains the centre of a pixel, along one side of the image.

    The arithmetic is in integers and exact.

    pixel: index of the pixel along this side.
    cells: number of cells along this side.
    pixels: number of pixels along this side.
    """
    return (2 * pixel + 1) * cells // (2 * pixels)


def upsampled(weights: NDArray[numpy.floating], height: int, width: int) -> NDArray[numpy.float64]:
    """Interpolate a map of weights (h, w) smoothly to (height, width) pixels, with h <= height, w <= width.

    Pixels near the centre of a cell have exactly the weight of the cell. Between two centres, the values
    follow a cubic smoothstep function. So the pixel with the largest value is in the cell with the largest
    weight, and no value is outside the range of the weights. If h divides height and w divides width, the
    mean of the pixels is the mean of the weights.

    >>> upsampled(numpy.array([[0.0, 1.0]]), 1, 8).round(2).tolist()
    [[0.0, 0.0, 0.0, 0.26, 0.74, 1.0, 1.0, 1.0]]
    """
    return _interpolated(_interpolated(numpy.asarray(weights, numpy.float64), height).T, width).T


def _interpolated(weights: NDArray[numpy.float64], size: int) -> NDArray[numpy.float64]:
    """Interpolate weights (h, w) along the first axis; return an array (size, w)."""
    count = len(weights)
    # The position of the centre of each pixel, measured in cells: 0 is the centre of cell 0, 1 of cell 1, ...
    places = numpy.clip((numpy.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
    low = numpy.minimum(places.astype(int), max(count - 2, 0))
    high = numpy.minimum(low + 1, count - 1)
    # In the plateau, the weight is unchanged. It extends at least half a pixel from the centre of a cell, so
    # that it contains the centre of a pixel.
    margin = min(max(PLATEAU, 0.5 * count / size), 0.499)
    step = numpy.clip((places - low - margin) / (1 - 2 * margin), 0, 1)
    step = (step * step * (3 - 2 * step))[:, None]
    mixed: NDArray[numpy.float64] = weights[low] * (1 - step) + weights[high] * step
    return mixed


WORDS = 300
"""Maximum number of words of a caption in an ImageAttention."""

SIDE, CELLS = 8192, 64
"""SIDE is the maximum width and height of an image, in pixels. CELLS is the maximum width and height of the
attention map of a word, in cells."""

UNIFORM_CELLS, UNIFORM_RATIO = 4, 1.5
"""Limits for an attention map that is called nearly uniform. No weight exceeds UNIFORM_RATIO times the mean
weight. A map of fewer than UNIFORM_CELLS cells is called nearly uniform only if all its weights are equal."""

UNIFORM = "a word without a mark attends almost uniformly: no weight exceeds 1.5 times the mean weight"
"""A note for pictures in which some maps are nearly uniform. The strongest cells of these maps are not
marked."""

LONGEST = 40
"""Maximum width of a word in the summary, in terminal cells. Longer words are truncated."""

WIDEST, TALLEST = 64, 24
"""Maximum size of an image in the terminal: WIDEST characters and TALLEST lines."""

MAP = 16
"""Maximum number of rows and columns in the drawing of an attention map. In a larger map, several cells are
drawn as one cell with the largest of their weights."""

MAPS, LONGEST_NAME = 40, 22
"""MAPS: maximum number of words with an attention map in the terminal. LONGEST_NAME: maximum width of the
word above its map, in characters."""

LEGEND = "number: largest weight of the word; []: cell with this weight; shades: from 0 to this weight"

PANEL, NARROWEST, GAP, ACROSS = 118.0, 100.0, 12.0, 5
"""Layout of the panels (the image, and a copy of it for each word). Lengths are in points.

PANEL: length of the longer side of a panel.
NARROWEST: minimum width of a column of panels, so that a word and its weight fit.
GAP: distance between panels.
ACROSS: number of panels in a row."""

LARGEST, SMALLEST, OF_CAPTION = 256, 64, 1_000_000
"""Sizes in pixels of a panel (the copy of the image for one word). LARGEST is the maximum width and height.
If all panels together would have more than OF_CAPTION pixels, they are made smaller. But the longer side of a
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

CAPTIONS = 500
"""Maximum number of captions on one HTML page."""

PIXELS, IMAGE = 6_000_000, 160_000
"""PIXELS is the maximum number of pixels of all images on a page together, to limit the size of the file.
IMAGE is the maximum number of pixels of the image of one caption."""

INLINE = 200_000
"""Maximum number of pixels of the pictures of all words together in caption_fragment()."""

TITLE = "Captions"


@dataclass(frozen=True, eq=False, repr=False)
class ImageAttention(Illustrated):
    """The attention of every word of a caption over an image: print it, show it in a notebook, or save it.

    image: uint8, (H, W, 3), the image as the model reads it: after resizing and cropping.
    words: the T words of the caption.
    weights: (T, h, w), the attention weights of each word, as a map of h x w cells. Cell (i, j) covers the
        rows of pixels from i H/h to (i + 1) H/h, and the columns from j W/w to (j + 1) W/w.
    logprobs: (T,), the log-probability of each word, or None.
    title: text above pictures. Default: the words.
    notes: texts below pictures, for example the summary of erase_regions().

    >>> image = numpy.zeros((8, 8, 3), numpy.uint8)
    >>> seen = ImageAttention(image, ["a", "cat"], [[[0.25, 0.25], [0.25, 0.25]], [[0.1, 0.7], [0.1, 0.1]]])
    >>> print(seen.summary())
    “cat” is the most focused word: its largest weight is 0.70, in row 1, column 2 of 2 x 2 cells; “a” is the
    least focused word: its largest weight is 0.25
    >>> seen.grid.box(seen.strongest(1))
    PixelBox(top=0, left=4, bottom=4, right=8)
    """

    image: NDArray[numpy.uint8]
    words: Sequence[str]
    weights: NDArray[numpy.float64]
    logprobs: Sequence[float] | None = None
    title: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "image", _checked_image(self.image))
        if isinstance(self.words, str):
            raise _error(f"words is one string, {clean(self.words)[:40]!r}", "a list of words")
        words = tuple(map(str, self.words))
        if not 1 <= len(words) <= WORDS:
            raise _error(f"there are {len(words)} words", f"1 to {WORDS} words")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "weights", _checked_maps(self.weights, len(words)))
        if self.logprobs is not None:
            logprobs = tuple(map(float, self.logprobs))
            if len(logprobs) != len(words) or not all(each <= 1e-4 for each in logprobs):
                raise _error("logprobs do not match the words", f"{len(words)} numbers that are at most 0")
            object.__setattr__(self, "logprobs", logprobs)
        notes = (self.notes,) if isinstance(self.notes, str) else tuple(map(str, self.notes))
        object.__setattr__(self, "notes", notes)

    @property
    def caption(self) -> str:
        """The words of the caption, separated by spaces."""
        return " ".join(self.words)

    @property
    def heading(self) -> str:
        """The text above pictures: the title, or the caption if there is no title."""
        return self.title or self.caption

    @property
    def grid(self) -> CellGrid:
        """The division of the image into h x w cells, with the pixels that each cell covers."""
        return CellGrid(*self.weights.shape[1:], *self.image.shape[:2])

    def strongest(self, word: int) -> int:
        """Return the index of the cell with the largest weight of a word.

        Cells are numbered row by row, from 0. If several cells have the largest weight, the first is
        returned.

        word: index of the word, from 0.
        """
        return int(self.weights[word].argmax())

    def is_uniform(self, word: int) -> bool:
        """Return whether the weights of a word are nearly uniform (see UNIFORM_RATIO) or all 0.

        In pictures, the strongest cell of a nearly uniform map is not marked, because it says little.

        word: index of the word, from 0.
        """
        weights_hw = self.weights[word]
        ratio = UNIFORM_RATIO if weights_hw.size >= UNIFORM_CELLS else 1.0
        return bool(weights_hw.max() <= ratio * weights_hw.mean() * (1 + 1e-9)) and weights_hw.size > 1

    def uniform_note(self) -> tuple[str, ...]:
        """Return (UNIFORM,), a note, if the weights of at least one word are nearly uniform. Otherwise ().

        The note is printed below pictures.
        """
        return (UNIFORM,) if any(map(self.is_uniform, range(len(self.words)))) else ()

    def probability(self, word: int) -> float | None:
        """Return the probability of a word, or None if `logprobs` is None. word: index, from 0."""
        return None if self.logprobs is None else min(float(numpy.exp(self.logprobs[word])), 1.0)

    def levels(self, word: int) -> NDArray[numpy.float64]:
        """Return the weights of a word, (h, w), divided by the largest weight; zeros if all are 0."""
        weights_hw = self.weights[word]
        return weights_hw / (weights_hw.max() or 1.0)

    def summary(self) -> str:
        """Return a text about the most focused and the least focused word of the caption.

        The most focused word has the highest maximum weight of all words. For an example, see ImageAttention.
        """
        largest = self.weights.max((1, 2))
        first, last = int(largest.argmax()), int(largest.argmin())
        rows, columns = self.weights.shape[1:]
        if not largest[first]:
            return "all weights are 0"
        row, column = divmod(self.strongest(first), columns)
        place = f"in row {row + 1}, column {column + 1} of {rows} x {columns} cells"
        if len(self.words) == 1:
            return f"the largest weight of {_quoted(self.words[0])} is {largest[0]:.2f}, {place}"
        most = f"{_quoted(self.words[first])} is the most focused word"
        text = f"{most}: its largest weight is {largest[first]:.2f}, {place}"
        if largest[last] == largest[first]:
            return text
        least = f"{_quoted(self.words[last])} is the least focused word: its largest weight"
        return f"{text}; {least} is {largest[last]:.2f}"

    def noted(self, *notes: object) -> ImageAttention:
        """Return a copy with more notes. Notes are printed below pictures."""
        return replace(self, notes=(*self.notes, *map(str, notes)))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the image and the title, and the strongest cell of each word, for JSON."""
        (height, width), columns = self.image.shape[:2], self.weights.shape[2]
        cells = [divmod(self.strongest(word), columns) for word in range(len(self.words))]
        return {
            "image_size": [height, width],
            "words": list(self.words),
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "weights": self.weights.tolist(),
            "strongest": [[row, column] for row, column in cells],
            "notes": list(self.notes),
        }

    def picture(self) -> Picture:
        """Return a Picture: the image, and for each word a copy of the image that is bright where it attends.

        If the Picture is saved as a .gif file, the file contains the animation that animation() returns.
        """
        return self.panels()

    def panels(self, pixels: int = OF_CAPTION) -> Picture:
        """Return the Picture that picture() returns, in another resolution.

        pixels: maximum number of pixels of all copies together, to limit the size of files.
        """
        canvas = Canvas(label(self.heading, 200))
        size = panel_size(self, pixels / (len(self.words) + 1))
        small = resized(self.image, *size)
        wide, high = (PANEL * each / max(size) for each in (size[1], size[0]))
        step_x, step_y = max(wide, NARROWEST) + GAP, high + GAP + 16
        canvas.raster(0, 16, wide, high, small, smooth=True)
        canvas.words(0, 6, "image", 9, color=QUIET)
        for number, word in enumerate(self.words):
            place = number + 1
            x, y = place % ACROSS * step_x, place // ACROSS * step_y
            canvas.raster(x, y + 16, wide, high, shaded_image(small, self.levels(number)), smooth=True)
            _outline(canvas, self, number, x, y + 16, wide, high)
            canvas.words(x, y + 6, label(word, 12), 9)
            most = f"{self.weights[number].max():.2g}"
            canvas.words(x + step_x - GAP, y + 6, most, 8, color=QUIET, anchor="end")
        bottom = (len(self.words) // ACROSS + 1) * step_y
        _scale(canvas, 0, bottom)
        canvas.foot(*(label(note, 400) for note in (SCALE_NOTE, *self.uniform_note(), *self.notes)))
        canvas.head(label(self.heading, 200))
        (rows, columns), (height, width) = self.weights.shape[1:], self.image.shape[:2]
        words = f"{len(self.words)} word{'s' * (len(self.words) != 1)}"
        canvas.about = f"{words} over an image of {height} x {width} pixels; {rows} x {columns} cells"
        return Picture([canvas], terminal_caption(self), animation=self.animation)

    def animation(self, seconds: float = 0.8) -> Picture:
        """Return an animated Picture: the image alone, then a frame for each word.

        In each frame, the image is bright where the word attends. Below it is the caption up to this word.

        seconds: how long each frame is shown, from 0.05 to 60.
        """
        if not 0.05 <= seconds <= 60:
            problem = f"seconds is {seconds}"
            raise ArgumentError(message("animation()", problem, expected="a number from 0.05 to 60"))
        size = panel_size(self, MOVING_PIXELS / (len(self.words) + 1))
        small = resized(self.image, *size)
        wide, high = (MOVING * each / max(size) for each in (size[1], size[0]))
        places = _placed([label(word, 40) for word in self.words], max(wide, MOVING))
        frames = []
        for now in range(-1, len(self.words)):
            canvas = Canvas(label(self.heading, 200), "the image" if now < 0 else label(self.words[now], 40))
            pixels = small if now < 0 else shaded_image(small, self.levels(now))
            canvas.raster(0, 0, wide, high, pixels, smooth=True)
            if now >= 0:
                _outline(canvas, self, now, 0, 0, wide, high)
                most = f"largest weight {self.weights[now].max():.2g}"
                canvas.words(0, high + 10, most, 8, color=QUIET)
            for place, (x, line, word) in enumerate(places[: now + 1]):
                color = DARK if place == now else QUIET
                canvas.words(x, high + 30 + line * LINE, word, TEXT, color=color)
                if place == now:
                    below = high + 30 + line * LINE + 9
                    canvas.line(x, below, x + width_of(word, TEXT), below, color=MARK, width=1.5)
            canvas.reserve(max(wide, MOVING), high + 30 + (places[-1][1] + 1) * LINE)
            note = SCALE_NOTE.replace("beside the word", "below the image")
            canvas.foot(note, *(label(each, 400) for each in (*self.uniform_note(), *self.notes)))
            frames.append(canvas)
        return Picture(frames, terminal_caption(self), seconds)

    def page(self) -> str:
        return caption_page([self])

    def __repr__(self) -> str:
        (rows, columns), (height, width) = self.weights.shape[1:], self.image.shape[:2]
        sizes = f"{rows} x {columns} cells over {height} x {width} pixels"
        return f"ImageAttention({cropped(clean(self.caption), 60)!r}: {len(self.words)} words, {sizes})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield terminal_caption(self)

    def _repr_html_(self) -> str:
        notes = (f'<p class="quiet" dir="auto">{safe(note)}</p>' for note in (self.summary(), *self.notes))
        return fragment_of((_panels(self, INLINE), *notes))


def resized(image: NDArray[numpy.uint8], height: int, width: int) -> NDArray[numpy.uint8]:
    """Resize an image (H, W, 3) to (height, width, 3).

    If a side becomes smaller, a pixel of the result is the mean of the pixels that it covers. If a side
    becomes larger, a pixel of the result is a copy of the nearest pixel.

    >>> resized(numpy.array([[[0, 0, 0], [200, 100, 50]]], numpy.uint8), 2, 1).tolist()
    [[[100, 50, 25]], [[100, 50, 25]]]
    """
    pixels = numpy.asarray(image, numpy.float64)
    for axis, size in ((0, height), (1, width)):
        count = pixels.shape[axis]
        if size < count:
            ends = numpy.arange(size + 1) * count // size
            sums = numpy.add.reduceat(pixels, ends[:-1], axis=axis)
            pixels = sums / numpy.diff(ends).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        else:
            pixels = pixels.take((2 * numpy.arange(size) + 1) * count // (2 * size), axis=axis)
    return pixels.round().astype(numpy.uint8)


def _checked_image(image: Any) -> NDArray[numpy.uint8]:
    array = as_numpy(image)
    if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        hint = ""
        if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
            hint = "use image.transpose(1, 2, 0) if the channels come first"
        raise _error(f"image is {array.dtype}, {array.shape}", "uint8, (height, width, 3)", hint)
    if max(array.shape[:2]) > SIDE:
        height, width = array.shape[:2]
        expected = f"at most {SIDE} pixels along each side"
        raise _error(f"image has {height} x {width} pixels", expected, "resize the image first")
    return array


def _checked_maps(weights: Any, words: int) -> NDArray[numpy.float64]:
    maps, _ = checked_weights("ImageAttention()", weights, "Thw", None)
    if len(maps) != words or not maps.size:
        raise _error(f"weights have shape {maps.shape}", f"({words}, h, w), one map for each word")
    if max(maps.shape[1:]) > CELLS:
        raise _error(f"the maps have {maps.shape[1]} x {maps.shape[2]} cells", f"at most {CELLS} x {CELLS}")
    if numpy.isnan(maps).any():
        raise _error("some weights are NaN", "finite numbers >= 0")
    return numpy.maximum(maps, 0.0)


def _error(problem: str, expected: str, hint: str = "") -> ArgumentError:
    return ArgumentError(message("ImageAttention()", problem, expected=expected, hint=hint))


def _quoted(word: str) -> str:
    return f"“{cropped(clean(word), LONGEST)}”"


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
    drawn.append(beside(*(_map(seen, word) for word in range(min(len(seen.words), MAPS)))))
    notes = [LEGEND, *seen.uniform_note()]
    if len(seen.words) > MAPS:
        notes.append(f"shown: the first {MAPS} of {len(seen.words)} words")
    drawn += [Text(clean(note), "dim") for note in (*notes, *seen.notes)]
    return Group(*drawn)


def _map(seen: ImageAttention, word: int) -> Thumbnails:
    levels = pooled_down(seen.levels(word), MAP, MAP)
    name = f"{cropped(clean(seen.words[word]), LONGEST_NAME)} {seen.weights[word].max():.2g}"
    row, column = divmod(int(levels.argmax()), levels.shape[1])
    return Thumbnails(name, (levels,), None if seen.is_uniform(word) else (row, column), cell=2)


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
    return (seen.noted(about) if about else seen).picture()


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


def _outline(
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
    row, column = divmod(seen.strongest(word), columns)
    left, top = x + width * column / columns, y + height * row / rows
    canvas.box(left, top, width / columns, height / rows, "none", edge=MARK)


def _scale(canvas: Canvas, x: float, y: float) -> None:
    """Draw the legend at (x, y): a grey bar whose brightness goes from weight 0 to the largest weight."""
    levels = numpy.linspace(0, 1, 24)[None]
    grey = numpy.full((1, 24, 3), 160, numpy.uint8)
    canvas.words(x, y, "0", 8, color=QUIET)
    canvas.raster(x + 10, y - 4, 72, 8, shaded_image(grey, levels))
    canvas.words(x + 86, y, "largest weight of the word", 8, color=QUIET)


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


def caption_page(captions: Iterable[ImageAttention], title: str = TITLE, about: str = "") -> Page:
    """Return a self-contained HTML page of captions with the attention of every word over its image.

    captions: 1 to 500 images, each with its caption and the attention of each word.
    title: the heading of the page.
    about: a line below the heading.

    >>> image = numpy.zeros((4, 4, 3), numpy.uint8)
    >>> page = caption_page([ImageAttention(image, ["<cat>"], [[[1.0]]])])
    >>> page.startswith("<!DOCTYPE html>"), "<cat>" in page, "&lt;cat&gt;" in page
    (True, False, True)
    """
    listed = list(captions)
    if not 1 <= len(listed) <= CAPTIONS:
        problem = f"there are {len(listed)} captions"
        raise ArgumentError(message("caption_page()", problem, expected=f"1 to {CAPTIONS}"))
    hint = (
        "Point at a word, or move to it with Tab and the arrow keys, to see where it attended. Point at the "
        "image to see which words attended to that region."
    )
    body = (line for number, each in enumerate(listed) for line in _article(each, number, len(listed)))
    files = ("caption.css", "words.js", "caption.js")
    return article_page(title, body, about=about, hint=hint, files=files)


def save_caption_page(
    path: str | Path, captions: Iterable[ImageAttention], title: str = TITLE, about: str = ""
) -> None:
    """Write the HTML page that caption_page() returns to a file, atomically.

    path: the file to write, ending in .html.
    captions, title, about: see caption_page().
    """
    save_html(path, lambda: caption_page(captions, title, about))


def _article(seen: ImageAttention, number: int, count: int) -> Iterator[str]:
    """Yield the HTML of an <article> with one image, its caption and the attention of each word.

    seen: the image with the caption and the attention of each word.
    number: index of the caption on the page, from 0.
    count: number of captions on the page.
    """
    yield f'<article id="c{number + 1}">'
    if count > 1:
        yield f'<h2><a href="#c{number + 1}">{number + 1}</a></h2>'
    if seen.title:
        yield f'<p class="name" dir="auto">{safe(seen.title)}</p>'
    size = panel_size(seen, min(IMAGE, PIXELS / count / 2))
    rows, columns = seen.weights.shape[1:]
    yield f'<figure data-rows="{rows}" data-columns="{columns}">'
    yield (
        f'<img class="photo" width="{size[1]}" height="{size[0]}" alt="the image of the caption: '
        f'{safe(seen.caption)}" src="{image_uri("png", png_of(resized(seen.image, *size)))}">'
    )
    yield "</figure>"
    words = "\n".join(_word(seen, word) for word in range(len(seen.words)))
    yield f'<p class="caption" dir="auto" lang="" role="group" aria-label="words of the caption">{words}</p>'
    yield f'<p class="what" dir="auto">{safe(_sentence(seen.summary()))}</p>'
    if seen.notes:
        yield "".join(f'<p class="note quiet" dir="auto">{safe(note)}</p>' for note in seen.notes)
    yield '<details class="panels" open><summary>a panel for each word</summary>'
    yield _panels(seen, PIXELS / count / 2)
    yield "</details>"
    yield "</article>"


def _word(seen: ImageAttention, word: int) -> str:
    """Return a word of the caption as a <span>, with its attention weights in the attributes.

    The attribute data-map has one byte for each cell of the image, in base64. 255 is the largest weight.

    word: index of the word, from 0.
    """
    levels = (255 * seen.levels(word)).round().astype(numpy.uint8)
    chance = seen.probability(word)
    probability = "" if chance is None else f' data-probability="{chance:.3g}"'
    most = f'data-most="{seen.weights[word].max():.6g}"'
    if not seen.is_uniform(word):
        most += f' data-cell="{seen.strongest(word)}"'
    data = base64.b64encode(levels.tobytes()).decode()
    return f'<span {most}{probability} data-map="{data}">{safe(seen.words[word])}</span>'


def _panels(seen: ImageAttention, pixels: float) -> str:
    """Return an <img> element with an SVG picture: for each word, a copy of the image with its attention.

    pixels: maximum number of pixels of all copies together.
    """
    svg = seen.panels(int(pixels)).svg()
    return f'<img class="all" alt="{safe(seen.caption)}" src="{image_uri("svg+xml", svg.encode())}">'


def _sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}."
