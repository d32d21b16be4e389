"""ImageAttention: the attention of every word of a caption over an image, as arrays that can be drawn."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import as_numpy, checked_weights
from regard.viewing.html_document import SUFFIXES, check_ending
from regard.viewing.image_cells import CellGrid
from regard.viewing.terminal_colors import clean, cropped

__all__ = ["ImageAttention", "resized"]

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


@dataclass(frozen=True, eq=False, repr=False)
class ImageAttention:
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

    def picture(self) -> Any:
        """Return a Picture: the image, and for each word a copy of the image that is bright where it attends.

        If the Picture is saved as a .gif file, the file contains the animation that animation() returns.
        """
        return importlib.import_module("regard.viewing.pictures.caption_panels").caption_panels(self)

    def animation(self, seconds: float = 0.8) -> Any:
        """Return an animated Picture: a frame for each word, with the caption up to this word.

        seconds: duration of a frame.
        """
        module = importlib.import_module("regard.viewing.pictures.caption_panels")
        return module.caption_animation(self, seconds)

    def save(self, path: str | Path) -> tuple[str, ...]:
        """Write a .png, .svg, .pdf, .gif (animation) or .html file, atomically.

        Returns hints about characters that no installed font has. Usually the result is empty.
        """
        if check_ending(path, (*SUFFIXES, ".html")).suffix.lower() == ".html":
            importlib.import_module("regard.viewing.caption_page").save_caption_page(path, [self])
            return ()
        hints: tuple[str, ...] = self.picture().save(path)
        return hints

    def __repr__(self) -> str:
        (rows, columns), (height, width) = self.weights.shape[1:], self.image.shape[:2]
        sizes = f"{rows} x {columns} cells over {height} x {width} pixels"
        return f"ImageAttention({cropped(clean(self.caption), 60)!r}: {len(self.words)} words, {sizes})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield importlib.import_module("regard.viewing.terminal_image").terminal_caption(self)

    def _repr_html_(self) -> str:
        return str(importlib.import_module("regard.viewing.caption_page").caption_fragment(self))


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
