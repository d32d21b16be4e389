"""gaze(): draw the same image for each word, bright in the regions to which the word attends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.image_cells import upsampled
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import label
from regard.viewing.pictures.head_grid import Thumbnails, pooled_down
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import beside

__all__ = ["gaze"]

SIDE, GAP, ACROSS = 118.0, 10.0, 5
"""SIDE: size of an image. GAP: distance between images. Both are in points. ACROSS: number of images per
row."""

LARGEST = 256
"""Maximum number of pixels along each side of an image."""

DIM = 0.3
"""Brightness of the image where the weight is 0, as a fraction of its full brightness."""


def gaze(image: Any, weights: Any, words: Sequence[object], title: str = "", about: str = "") -> Picture:
    """Draw the same image once per word, bright where the weights of the word are large (Xu et al. 2015).

    image: (height, width) or (height, width, 3), values from 0 to 1 or from 0 to 255.
    weights: (T, h, w), the attention weights of each word for h x w regions of the image. They are
        interpolated to the size of the image.
    words: T words.
    title: a title.
    about: a line below the title.

    >>> import numpy
    >>> from regard.viewing import gaze
    >>> image = numpy.linspace(0, 1, 64).reshape(8, 8)
    >>> gaze(image, numpy.eye(4).reshape(4, 2, 2), ["a", "cat", "sits", "."]).frames[0].size
    (526.0, 159.0)
    """
    pixels, maps = _image(image), numpy.asarray(weights, float)
    if maps.ndim != 3 or len(maps) != len(words) or not maps.size:
        expected = f"({len(words)}, h, w), one map for each word"
        raise ArgumentError(message("gaze()", f"weights have shape {maps.shape}", expected=expected))
    if not numpy.isfinite(maps).all() or maps.min() < -1e-6:
        problem = "some weights are negative, infinite or NaN"
        raise ArgumentError(message("gaze()", problem, expected="finite numbers >= 0"))
    canvas = Canvas(label(title, 90) or "Where each word attends", about)
    height, width = pixels.shape[:2]
    wide, high = (SIDE * size / max(height, width) for size in (width, height))
    for number, (word, map_hw) in enumerate(zip(words, maps, strict=True)):
        x, y = number % ACROSS * (SIDE + GAP), number // ACROSS * (high + GAP + 16)
        brightness = upsampled(map_hw / (map_hw.max() or 1.0), height, width)[..., None]
        shaded = pixels * (DIM + (1 - DIM) * brightness)
        canvas.raster(x, y, wide, high, (255 * shaded).round().astype(numpy.uint8), smooth=True)
        canvas.words(x + wide / 2, y + high + 10, label(word, 18), SIZE, anchor="middle")
    canvas.head(label(title, 90), label(about, 110))
    most = maps.max() or 1.0
    small = [
        Thumbnails(label(word, 18), (pooled_down(map_hw, 10, 20) / most,))
        for word, map_hw in zip(words, maps, strict=True)
    ]
    return Picture([canvas], beside(*small))


def _image(data: Any) -> NDArray[numpy.float64]:
    """Return an image as an array (height, width, 3) from 0 to 1, with at most LARGEST pixels per side."""
    image = numpy.asarray(data)
    if image.ndim == 2:
        image = numpy.repeat(image[..., None], 3, axis=-1)
    if image.ndim != 3 or image.shape[-1] not in (3, 4) or not image.size:
        hint = "use image.transpose(1, 2, 0) if the channels come first"
        expected = "(height, width) or (height, width, 3)"
        raise ArgumentError(message("gaze()", f"image has shape {image.shape}", expected=expected, hint=hint))
    image = numpy.asarray(image[..., :3], float) / (
        255.0 if image.dtype == numpy.uint8 or image.max() > 1.5 else 1.0
    )
    step = -(-max(image.shape[:2]) // LARGEST)
    return numpy.clip(image[::step, ::step], 0.0, 1.0)
