"""The gaze: an image once for each word, lit where the word looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import label
from regard.viewing.pictures.head_grid import Thumbnails, pooled_down
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import beside

__all__ = ["gaze"]

SIDE, GAP, ACROSS = 118.0, 10.0, 5
"""Of an image and between images, in points, and how many stand side by side."""

LARGEST = 256
"""Images are drawn no finer than this many pixels along a side."""

DIM = 0.3
"""How much is left of the light where a word did not look."""


def gaze(image: Any, weights: Any, words: Sequence[object], title: str = "", about: str = "") -> Picture:
    """Draw an image for each word with what it looked at lit, and the rest dim (Xu et al. 2015).

    image: (height, width), or (height, width, 3), from 0 to 1 or from 0 to 255. weights: (T, h, w), of a
    coarser grid as a rule; they are spread over the image smoothly. words: T.

    >>> import numpy
    >>> from regard.viewing import gaze
    >>> image = numpy.linspace(0, 1, 64).reshape(8, 8)
    >>> gaze(image, numpy.eye(4).reshape(4, 2, 2), ["a", "cat", "sits", "."]).frames[0].size
    (526.0, 159.0)
    """
    pixels, looked = _image(image), numpy.asarray(weights, float)
    if looked.ndim != 3 or len(looked) != len(words) or not looked.size:
        expected = f"({len(words)}, h, w), one map for each word"
        raise ArgumentError(message("gaze()", f"weights have the sizes {looked.shape}", expected=expected))
    if not numpy.isfinite(looked).all() or looked.min() < -1e-6:
        raise ArgumentError(message("gaze()", "weights are not all finite and 0 or more"))
    canvas = Canvas(label(title, 90) or "What each word looked at", about)
    height, width = pixels.shape[:2]
    wide, high = (SIDE * size / max(height, width) for size in (width, height))
    for number, (word, map_hw) in enumerate(zip(words, looked, strict=True)):
        x, y = number % ACROSS * (SIDE + GAP), number // ACROSS * (high + GAP + 16)
        light = _spread(map_hw, height, width)[..., None]
        lit = pixels * (DIM + (1 - DIM) * light)
        canvas.raster(x, y, wide, high, (255 * lit).round().astype(numpy.uint8), smooth=True)
        canvas.words(x + wide / 2, y + high + 10, label(word, 18), SIZE, anchor="middle")
    canvas.head(label(title, 90), label(about, 110))
    most = looked.max() or 1.0
    small = [
        Thumbnails(label(word, 18), (pooled_down(map_hw, 10, 20) / most,))
        for word, map_hw in zip(words, looked, strict=True)
    ]
    return Picture([canvas], beside(*small))


def _image(given: Any) -> NDArray[numpy.float64]:
    """An image as (height, width, 3) from 0 to 1, no larger than it is drawn."""
    image = numpy.asarray(given)
    if image.ndim == 2:
        image = numpy.repeat(image[..., None], 3, axis=-1)
    if image.ndim != 3 or image.shape[-1] not in (3, 4) or not image.size:
        hint = "image.transpose(1, 2, 0) where colours come first"
        expected = "(height, width) or (height, width, 3)"
        raise ArgumentError(
            message("gaze()", f"image has the sizes {image.shape}", expected=expected, hint=hint)
        )
    image = numpy.asarray(image[..., :3], float) / (
        255.0 if image.dtype == numpy.uint8 or image.max() > 1.5 else 1.0
    )
    step = -(-max(image.shape[:2]) // LARGEST)
    return numpy.clip(image[::step, ::step], 0.0, 1.0)


def _spread(weights: NDArray[numpy.float64], height: int, width: int) -> NDArray[numpy.float64]:
    """Weights as light from 0 to 1 on a finer grid, straight lines between their middles."""
    found = weights / (weights.max() or 1.0)
    return _along(_along(found, height).T, width).T


def _along(weights: NDArray[numpy.float64], size: int) -> NDArray[numpy.float64]:
    """Every column drawn out to this many rows."""
    count = len(weights)
    places = (numpy.arange(size) + 0.5) * count / size - 0.5
    return numpy.stack([numpy.interp(places, numpy.arange(count), each) for each in weights.T], axis=-1)
