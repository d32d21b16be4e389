"""Draw scenes as RGB pictures of 64 x 64 pixels, with smooth edges.

All arithmetic is in integers, so a picture has the same bytes on every machine. For each shape and size,
there is a square array with one number for each pixel: how many of 16 points in the pixel are inside the
shape. This number decides how the colour of the object and the colour of the background are mixed in the
pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy
from numpy.typing import NDArray

from regard.data.shapes.scenes import PIXELS, SHAPES, SIZES, Scene, SceneObject

__all__ = ["object_mask", "render"]

SAMPLES = 4
"""A pixel is tested at SAMPLES x SAMPLES points, to count how many of them are inside a shape."""

FULL = SAMPLES * SAMPLES
"""Number of points at which a pixel is tested. If a shape covers the pixel, all points are inside it."""


def render(scenes: Sequence[Scene]) -> NDArray[numpy.uint8]:
    """Draw scenes as RGB pictures; return an array of shape (N, 3, 64, 64), dtype uint8.

    >>> thing = SceneObject("large", "blue", "square", x=20, y=40, tint=(40, 80, 214))
    >>> picture = render([Scene((thing,), background=250)])[0]
    >>> picture.shape, picture[:, 40, 20].tolist(), picture[:, 0, 0].tolist()
    ((3, 64, 64), [40, 80, 214], [250, 250, 250])
    """
    canvas = numpy.empty((len(scenes), PIXELS, PIXELS, 3), numpy.int32)
    canvas[:] = numpy.array([scene.background for scene in scenes], numpy.int32).reshape(-1, 1, 1, 1)
    for size, radius in SIZES.items():
        # All objects of one size have arrays of equal shape, so they are drawn with one indexing operation.
        placed = [
            (number, each.x, each.y, SHAPES.index(each.shape), *each.tint)
            for number, scene in enumerate(scenes)
            for each in scene.objects
            if each.size == size
        ]
        if not placed:
            continue
        number, x, y, shape, *tint = numpy.array(placed, numpy.int64).T
        steps = numpy.arange(-radius, radius + 1)
        at = number[:, None, None], (y[:, None] + steps)[:, :, None], (x[:, None] + steps)[:, None, :]
        covered = numpy.stack([_coverage(name, size) for name in SHAPES])[shape][..., None]
        colour = numpy.stack(tint, -1).astype(numpy.int32)[:, None, None, :]
        # Objects never overlap, so no pixel is written twice.
        canvas[at] = (canvas[at] * (FULL - covered) + colour * covered + FULL // 2) // FULL
    return numpy.ascontiguousarray(canvas.astype(numpy.uint8).transpose(0, 3, 1, 2))


def object_mask(thing: SceneObject) -> NDArray[numpy.bool_]:
    """Return a bool array (64, 64), True for each pixel of which the object covers at least half."""
    mask = numpy.zeros((PIXELS, PIXELS), numpy.bool_)
    left, top, right, bottom = thing.box
    mask[top:bottom, left:right] = _coverage(thing.shape, thing.size) >= FULL // 2
    return mask


@cache
def _coverage(shape: str, size: str) -> NDArray[numpy.int32]:
    """Return how much of each pixel of its bounding box a shape covers.

    The result is a square array. Each entry is the number of sample points of a pixel that are inside the
    shape, from 0 to FULL (all points of the pixel).

    shape: a name in SHAPES.
    size: a name in SIZES.
    """
    width = 2 * SIZES[size] + 1
    # A pixel is 2 * SAMPLES units wide, so that sample points have integer coordinates; the centre is 0.
    edge = SAMPLES * width
    points = numpy.arange(width * SAMPLES) * 2 + 1 - edge
    across, down = points[None, :], points[:, None]
    inside = {
        "circle": across**2 + down**2 <= edge**2,
        "square": (abs(across) <= edge) & (abs(down) <= edge),
        "triangle": 2 * abs(across) <= down + edge,
        "cross": (3 * abs(across) <= edge) | (3 * abs(down) <= edge),
        "diamond": abs(across) + abs(down) <= edge,
    }[shape]
    return inside.reshape(width, SAMPLES, width, SAMPLES).sum((1, 3), dtype=numpy.int32)
