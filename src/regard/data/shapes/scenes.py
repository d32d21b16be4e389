"""Scenes: 2 to 4 objects on a plain background, each with a size, a colour, a shape and a place.

The picture is divided into 3 x 3 squares. Each object lies in its own square, so objects never overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "COLOURS",
    "PIXELS",
    "PLACES",
    "RELATIONS",
    "SHAPES",
    "SIZES",
    "SQUARE",
    "SQUARE_STARTS",
    "Box",
    "Scene",
    "SceneObject",
]

PIXELS = 64
"""Width and height of a picture in pixels."""

SQUARE = 21
SQUARE_STARTS = (0, 21, 43)
"""A picture is divided into 3 x 3 squares, each of which contains at most one object.

SQUARE: width and height of a square in pixels.
SQUARE_STARTS: the first pixel of each of the three rows of squares. The columns start at the same numbers.
"""

SHAPES = ("circle", "square", "triangle", "cross", "diamond")

SIZES = {"small": 5, "large": 8}
"""Name of a size of objects -> distance in pixels from the centre to the edge of the bounding box.

A bounding box is 2 * 5 + 1 = 11 or 2 * 8 + 1 = 17 pixels wide and high.
"""

COLOURS = {
    "red": (214, 40, 40),
    "orange": (232, 130, 30),
    "brown": (120, 75, 35),
    "yellow": (232, 205, 30),
    "lime": (150, 215, 50),
    "green": (30, 130, 60),
    "cyan": (40, 185, 200),
    "blue": (40, 80, 214),
    "purple": (145, 50, 180),
    "pink": (235, 125, 180),
    "grey": (130, 130, 130),
    "black": (24, 24, 24),
}
"""Name of a colour of objects -> RGB values, to which small random numbers are added for each object."""

PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "at the top left": ((0,), (0,)),
    "at the top right": ((0,), (2,)),
    "at the bottom left": ((2,), (0,)),
    "at the bottom right": ((2,), (2,)),
    "at the top": ((0,), (0, 1, 2)),
    "at the bottom": ((2,), (0, 1, 2)),
    "at the left": ((0, 1, 2), (0,)),
    "at the right": ((0, 1, 2), (2,)),
    "in the middle": ((1,), (1,)),
}
"""Name of a place -> the rows and the columns of squares that belong to it; a picture has 3 x 3 squares.

An object in the top left square is at the top left, at the top, and at the left. The most specific name comes
first in this table.
"""


class Box(NamedTuple):
    """A rectangle of pixels in a picture.

    left: the first column of pixels in the rectangle.
    top: the first row of pixels in the rectangle.
    right: the first column after the rectangle, so that its width is right - left.
    bottom: the first row after the rectangle, so that its height is bottom - top.
    """

    left: int
    top: int
    right: int
    bottom: int


class SceneObject(NamedTuple):
    """An object of a picture, for example a small red circle.

    size: "small" or "large".
    colour: a name in COLOURS, for example "red".
    shape: a name in SHAPES, for example "circle".
    x: column of the pixel at its centre, from 0 at the left.
    y: row of the pixel at its centre, from 0 at the top.
    tint: the RGB values of the object, which are close to the values of its colour in COLOURS.

    >>> thing = SceneObject("small", "red", "circle", x=10, y=30, tint=(214, 40, 40))
    >>> thing.name, thing.place, thing.box
    ('small red circle', 'at the left', Box(left=5, top=25, right=16, bottom=36))
    """

    size: str
    colour: str
    shape: str
    x: int
    y: int
    tint: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Size, colour and shape: "small red circle". No two objects of a scene have the same name."""
        return f"{self.size} {self.colour} {self.shape}"

    @property
    def row(self) -> int:
        """The row of the square that the object is in, of the 3 x 3 squares of the picture: 0 to 2."""
        return _square(self.y)

    @property
    def column(self) -> int:
        """The column of the square that the object is in, of the 3 x 3 squares of the picture: 0 to 2."""
        return _square(self.x)

    @property
    def place(self) -> str:
        """The most specific name of the place of the object, for example "at the top left"."""
        return next(name for name in PLACES if self.is_at(name))

    def is_at(self, place: str) -> bool:
        """Return whether the object is at a place.

        place: a name in PLACES, for example "at the top".
        """
        rows, columns = PLACES[place]
        return self.row in rows and self.column in columns

    @property
    def box(self) -> Box:
        """The bounding box of the object in pixels."""
        radius = SIZES[self.size]
        return Box(self.x - radius, self.y - radius, self.x + radius + 1, self.y + radius + 1)


def _square(position: int) -> int:
    return sum(position >= start for start in SQUARE_STARTS[1:])


RELATIONS: dict[str, Callable[[SceneObject, SceneObject], bool]] = {
    "left of": lambda first, second: first.box.right <= second.box.left,
    "right of": lambda first, second: second.box.right <= first.box.left,
    "above": lambda first, second: first.box.bottom <= second.box.top,
    "below": lambda first, second: second.box.bottom <= first.box.top,
}
"""Name of a relation -> function of two objects that returns whether the relation holds.

An object is left of another object if its bounding box ends before the box of the other object begins. So an
object can be left of another object and also above it. For any two objects, at least one relation holds.
"""


class Scene(NamedTuple):
    """The content of a picture of the corpus `shapes`.

    objects: 2 to 4 objects, which do not overlap.
    background: the grey level of the background, 0 (black) to 255 (white).
    """

    objects: tuple[SceneObject, ...]
    background: int = 255
