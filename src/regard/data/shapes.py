"""The built-in corpus `shapes`: generated pictures of simple shapes, with captions.

For each word of a caption, the corpus knows its gold region: the region of the picture that the word
describes.

    corpus = shapes("train", count=1000)
    images = corpus.images(range(32))                    # uint8 tensor (32, 3, 64, 64)
    scene, captions = corpus[0]
    is_valid(scene, "a small red circle above a square") # True for any true caption, not only generated ones
    word_regions(scene, captions[0])                     # the pixels that each word is about

A scene has 2 to 4 objects on a plain background, each with a size, a colour, a shape and a place.

The picture is divided into 3 x 3 squares. Each object lies in its own square, so objects never overlap.

render() draws scenes as RGB pictures of 64 x 64 pixels, with smooth edges.

All arithmetic is in integers, so a picture has the same bytes on every machine. For each shape and size,
there is a square array with one number for each pixel: how many of 16 points in the pixel are inside the
shape. This number decides how the colour of the object and the colour of the background are mixed in the
pixel.

all_captions() generates captions, is_valid() checks whether a caption is true, and word_regions() finds the
region of each word.

The grammar of a caption, where [ ] is optional and * means any number of times:

    caption  = clause ("and" clause)*
    clause   = object [relation object | place]
    object   = "a" [size] [colour] shape
    relation = "left of" | "right of" | "above" | "below"
    place    = "at the top left" | ... | "in the middle"

Generated captions give the size and the colour of each object. They name the objects in reading order, from
top left to bottom right. So the picture and the previous words determine which object is named next, and
where a captioner should attend.

shapes() generates scenes and captions at random, in splits. Some pairs of colour and shape do not occur in
the training split. The pairs in VALID_PAIRS occur in the validation split, so that settings can be chosen for
unseen pairs. The pairs in HELD_OUT occur only in the test splits.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ArgumentError, UnknownName, message, positive, printable

__all__ = [
    "Region",
    "Scene",
    "SceneObject",
    "Shapes",
    "ShapesExample",
    "all_captions",
    "is_valid",
    "render",
    "shapes",
    "word_regions",
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


FUNCTION_WORDS = frozenset({"a", "and", "at", "in", "of", "the"})
"""The words of captions that describe no part of the picture. All other words are content words."""

_OBJECT = f"a (?:(?:{'|'.join(SIZES)}) )?(?:(?:{'|'.join(COLOURS)}) )?(?:{'|'.join(SHAPES)})"
CLAUSE = re.compile(
    f"(?P<subject>{_OBJECT})"
    f"(?: (?P<place>{'|'.join(PLACES)})| (?P<relation>{'|'.join(RELATIONS)}) (?P<object>{_OBJECT}))?"
    "(?: and |$)"
)
"""Matches a clause of a caption, and the word "and" before the next clause."""


class Region(NamedTuple):
    """The part of a picture that a word of a caption describes: the pixels of one or more objects.

    objects: the objects, for example the red circle for the word "red".

    >>> thing = SceneObject("small", "red", "circle", x=10, y=10, tint=(214, 40, 40))
    >>> region = Region((thing,))
    >>> region.boxes, int(region.mask().sum())
    ((Box(left=5, top=5, right=16, bottom=16),), 97)
    >>> region.cells(8).astype(int)[:3].tolist()
    [[1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]
    """

    objects: tuple[SceneObject, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The bounding box, in pixels, of each object of the region."""
        return tuple(each.box for each in self.objects)

    def mask(self) -> NDArray[numpy.bool_]:
        """Return a bool array (64, 64), True for the pixels of the region. Row 0 is the top row."""
        return numpy.any([object_mask(each) for each in self.objects], axis=0)

    def cells(self, side: int) -> NDArray[numpy.bool_]:
        """Divide the picture into side x side cells. Return which cells contain a pixel of the region.

        The result is a bool array (side, side). A pixel in row y and column x is in the cell in row
        floor(y * side / 64) and column floor(x * side / 64).

        side: number of rows, and of columns, of cells. An example is the size of the feature map of an image
            encoder.
        """
        positive("Region.cells()", side=side)
        if side > PIXELS:
            raise ArgumentError(
                message("Region.cells()", f"side is {side}", expected=f"a number of at most {PIXELS}")
            )
        cells = numpy.zeros((side, side), numpy.bool_)
        rows, columns = numpy.nonzero(self.mask())
        cells[rows * side // PIXELS, columns * side // PIXELS] = True
        return cells


def all_captions(scene: Scene) -> list[str]:
    """Return all captions from which the corpus `shapes` samples the captions of a scene.

    The captions describe the first two objects in reading order: by row, then by column, of the 3 x 3 squares
    of the picture. There is one caption for each relation between these objects, at most two. One more
    caption has the place of the first object, and another one has the places of both objects.

    >>> first = SceneObject("small", "red", "circle", x=10, y=10, tint=(214, 40, 40))
    >>> second = SceneObject("large", "blue", "square", x=10, y=50, tint=(40, 80, 214))
    >>> for caption in all_captions(Scene((second, first))):
    ...     print(caption)
    a small red circle above a large blue square
    a small red circle at the top left
    a small red circle at the top left and a large blue square at the bottom left
    """
    first, second = sorted(scene.objects, key=lambda each: (each.row, each.column))[:2]
    related = [
        f"a {first.name} {relation} a {second.name}"
        for relation, holds in RELATIONS.items()
        if holds(first, second)
    ]
    place = f"a {first.name} {first.place}"
    return [*related, place, f"{place} and a {second.name} {second.place}"]


def is_valid(scene: Scene, caption: str) -> bool:
    """Return whether a caption is true of a scene and follows the grammar of this module.

    A caption is true if each noun phrase can be assigned to a different object of the scene, so that all
    attributes, relations and places are correct. Upper and lower case are not distinguished. A full stop at
    the end of the caption is ignored.

    >>> first = SceneObject("small", "red", "circle", x=10, y=10, tint=(214, 40, 40))
    >>> second = SceneObject("large", "blue", "square", x=50, y=50, tint=(40, 80, 214))
    >>> scene = Scene((first, second))
    >>> is_valid(scene, "a circle above a blue square"), is_valid(scene, "A red circle left of a square.")
    (True, True)
    >>> is_valid(scene, "a blue circle above a square"), is_valid(scene, "circle above square")
    (False, False)
    """
    statement = _parse(_words(caption))
    return statement is not None and bool(statement.assignments(scene))


def word_regions(scene: Scene, caption: str) -> list[Region | None]:
    """Return the gold region of each word of a caption: the objects of the scene that the word describes.

    Words are separated by spaces. For a size, a colour, a shape or a place, the region is the object that the
    word describes. For a relation, such as "above", the region is both objects. If a noun phrase fits several
    objects, its region is all these objects. Words such as "a", "of" and "the" have no region (None).

    Raise ArgumentError if the caption is not true of the scene.

    >>> first = SceneObject("small", "red", "circle", x=10, y=10, tint=(214, 40, 40))
    >>> second = SceneObject("large", "blue", "square", x=50, y=50, tint=(40, 80, 214))
    >>> regions = word_regions(Scene((first, second)), "a circle above a square")
    >>> [None if region is None else [each.shape for each in region.objects] for region in regions]
    [None, ['circle'], ['circle', 'square'], None, ['square']]
    """
    words = _words(caption)
    statement = _parse(words)
    assignments = statement.assignments(scene) if statement else []
    if statement is None or not assignments:
        problem = f"the caption {printable(caption)[:80]!r} is not true of the scene"
        hint = "check the caption with is_valid(scene, caption) first"
        raise ArgumentError(message("word_regions()", problem, hint=hint))
    regions: list[Region | None] = [None] * len(caption.split())
    for at, phrases in statement.content.items():
        # Keep the objects in the order of the scene, without duplicates.
        named = [assignment[phrase] for assignment in assignments for phrase in phrases]
        regions[at] = Region(tuple(each for each in scene.objects if each in named))
    return regions


@dataclass
class _Statement:
    """A parsed caption of a scene.

    phrases: for each noun phrase, its attributes: {"red", "circle"} for "a red circle".
    places: maps the index of a phrase to the place that the caption names for it.
    relations: tuples (relation, index of the first phrase, index of the second phrase).
    content: maps the index of each content word to the indices of the phrases that the word belongs to.
    """

    phrases: list[frozenset[str]] = field(default_factory=list)
    places: dict[int, str] = field(default_factory=dict)
    relations: list[tuple[str, int, int]] = field(default_factory=list)
    content: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def assignments(self, scene: Scene) -> list[tuple[SceneObject, ...]]:
        """Return all ways to assign a different object to each noun phrase so that the caption is true.

        Each way is a tuple with one object for each noun phrase, in the order of `phrases`.
        """
        if len(self.phrases) > len(scene.objects):
            return []
        return [each for each in itertools.permutations(scene.objects, len(self.phrases)) if self._fits(each)]

    def _fits(self, objects: tuple[SceneObject, ...]) -> bool:
        return (
            all(phrase <= set(each[:3]) for phrase, each in zip(self.phrases, objects, strict=True))
            and all(objects[phrase].is_at(place) for phrase, place in self.places.items())
            and all(RELATIONS[name](objects[one], objects[two]) for name, one, two in self.relations)
        )

    def add_words(self, match: re.Match[str], group: str, *phrases: int) -> None:
        """Add the content words of a group of a match. `phrases`: the noun phrases that they belong to."""
        first = match.string.count(" ", 0, match.start(group))
        for at, word in enumerate(match[group].split(), first):
            if word not in FUNCTION_WORDS:
                self.content[at] = phrases


def _words(caption: str) -> list[str]:
    words = caption.lower().split()
    if words and words[-1].endswith("."):
        words[-1:] = [words[-1][:-1]] if len(words[-1]) > 1 else []
    return words


def _parse(words: list[str]) -> _Statement | None:
    """Parse the words of a caption; return None if they do not follow the grammar at the top of this file."""
    caption, statement, at = " ".join(words), _Statement(), 0
    while at < len(caption) or not at:
        clause = CLAUSE.match(caption, at)
        if clause is None:
            return None
        subject, at = len(statement.phrases), clause.end()
        for group in ("subject", "object"):
            if clause[group]:
                statement.phrases.append(frozenset(clause[group].split()[1:]))
                statement.add_words(clause, group, len(statement.phrases) - 1)
        if clause["place"]:
            statement.places[subject] = clause["place"]
            statement.add_words(clause, "place", subject)
        elif clause["relation"]:
            statement.relations.append((clause["relation"], subject, subject + 1))
            statement.add_words(clause, "relation", subject, subject + 1)
    return statement


VERSION = 4
"""Version of the corpus. Any change of the pictures or captions requires a new version."""

CAPTIONS = 3
"""Maximum number of captions of a picture. Every scene has at least this many different captions."""

HELD_OUT = frozenset({("blue", "circle"), ("green", "square"), ("red", "triangle"), ("orange", "cross")})
"""The pairs of colour and shape that do not occur in the splits "train" and "valid"."""

VALID_PAIRS = frozenset(
    {("brown", "circle"), ("purple", "square"), ("cyan", "triangle"), ("pink", "diamond")}
)
"""The pairs of colour and shape that occur in "valid", but not in "train".

With these pairs, the validation split measures how well a captioner names unseen pairs. Each colour occurs in
at most one pair of HELD_OUT and VALID_PAIRS, so "train" has each colour with at least 4 of the 5 shapes.
"""

Kind = tuple[str, str, str]

KINDS: tuple[Kind, ...] = tuple(
    (size, colour, shape) for size in SIZES for colour in COLOURS for shape in SHAPES
)
"""All kinds of objects: every combination of a size, a colour and a shape."""

BACKGROUNDS = range(205, 256)
TINTS = range(-20, 21)
"""Ranges from which values are sampled for each picture.

BACKGROUNDS: the grey level of the background.
TINTS: the number that is added to each of the RGB values of an object.
"""

WORDS = 32
"""Number of random integers that are generated for each scene; the largest scene needs fewer."""


class Split(NamedTuple):
    """Which scenes a split of the corpus ("train", "valid", "test", "held-out") contains.

    number: a different number for each split, which is a part of its random seed.
    kinds: the kinds of objects (size, colour and shape) that occur in it.
    eighths: numbers from 0 to 7. The split contains the scenes for which eighth() returns one of these
        numbers.
    """

    number: int
    kinds: tuple[Kind, ...]
    eighths: frozenset[int]


TRAIN_KINDS = tuple(kind for kind in KINDS if kind[1:] not in HELD_OUT | VALID_PAIRS)
VALID_KINDS = tuple(kind for kind in KINDS if kind[1:] not in HELD_OUT)
HELD_OUT_KINDS = tuple(kind for kind in KINDS if kind[1:] in HELD_OUT)

SPLITS = {
    "train": Split(0, TRAIN_KINDS, frozenset(range(2, 8))),
    "valid": Split(1, VALID_KINDS, frozenset({0})),
    "test": Split(2, KINDS, frozenset({1})),
    "held-out": Split(3, HELD_OUT_KINDS, frozenset(range(2, 8))),
}
"""Name of a split -> which scenes it contains.

The splits have different pairs of colour and shape:

- "train" has all pairs except those in HELD_OUT and VALID_PAIRS.
- "valid" has all pairs except those in HELD_OUT.
- "test" has all pairs. About 2 of 10 scenes have at least one object whose pair is in HELD_OUT.
- "held-out" has only the pairs in HELD_OUT.

Each object is in one of 3 x 3 squares of the picture. A hash of the size, colour, shape and square of all
objects determines the split of a scene. So two splits never contain the same scene, not even with slightly
different colours or with objects moved inside their squares.
"""


class ShapesExample(NamedTuple):
    """An example of the corpus `shapes`.

    scene: the objects and the background of the picture.
    captions: its captions, in random order. Use the first one if only one is needed.
    """

    scene: Scene
    captions: tuple[str, ...]


class Shapes:
    """The built-in corpus `shapes` of pictures with captions. The arguments are those of shapes().

    Indexing returns the scene and the captions of a picture; images() draws pictures. Scenes, captions and
    pictures are computed when they are requested.

    >>> corpus = Shapes("test", count=2, seed=0)
    >>> corpus[0].captions[0]
    'a small red square at the top left'
    >>> corpus.images([1]).shape
    torch.Size([1, 3, 64, 64])
    """

    def __init__(self, split: str, count: int, seed: int = 0, captions: int = CAPTIONS):
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        for name, value, least in (("count", count, 0), ("seed", seed, 0), ("captions", captions, 1)):
            if isinstance(value, bool) or not isinstance(value, int | numpy.integer) or value < least:
                expected = f"an integer, {least} or more"
                raise ArgumentError(message("shapes()", f"{name} is {value!r}", expected=expected))
        if captions > CAPTIONS:
            expected = f"at most {CAPTIONS}"
            raise ArgumentError(message("shapes()", f"captions is {captions}", expected=expected))
        self.split, self.count, self.seed, self.captions = split, count, seed, captions

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        arguments = f"split={self.split!r}, count={self.count}, seed={self.seed}, captions={self.captions}"
        return f"Shapes({arguments})"

    @property
    def fingerprint(self) -> str:
        """A hash of split, count, seed, captions and VERSION, which determine the examples."""
        rules = f"shapes {VERSION} {self.split} {self.count} {self.seed} {self.captions}"
        return hashlib.blake2b(rules.encode(), digest_size=16).hexdigest()

    def __getitem__(self, index: int) -> ShapesExample:
        scene, bits = self._draw(index)
        captions = all_captions(scene)
        order = numpy.argsort(bits.random_raw(len(captions)), kind="stable")[: self.captions]
        return ShapesExample(scene, tuple(captions[place] for place in order))

    def __iter__(self) -> Iterator[ShapesExample]:
        return (self[index] for index in range(self.count))

    def scene(self, index: int) -> Scene:
        """Return the scene (the objects and the background) of the picture with this index, from 0."""
        return self._draw(index)[0]

    def images(self, indices: Iterable[int]) -> Tensor:
        """Draw the pictures with these indices; return a tensor of shape (B, 3, 64, 64), dtype uint8.

        If you have the scenes already, render(scenes) is faster.
        """
        return torch.from_numpy(render([self.scene(index) for index in indices]))

    def _draw(self, index: int) -> tuple[Scene, numpy.random.PCG64]:
        """Sample the scene of the picture with this index, from 0.

        Returns the scene, and the random generator with which its captions are then sampled.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"index {index} is out of range for {self.count} pictures")
        split = SPLITS[self.split]
        # Use raw random bits: they are the same in every version of numpy, unlike integers() and similar
        # methods.
        bits = numpy.random.PCG64(numpy.random.SeedSequence((VERSION, self.seed, split.number, int(index))))
        while True:
            scene = _scene(iter(bits.random_raw(WORDS).tolist()), split.kinds)
            if eighth(scene) in split.eighths:
                return scene, bits


def shapes(split: str = "train", count: int = 10000, seed: int = 0, captions: int = CAPTIONS) -> Shapes:
    """Return the built-in corpus of pictures with captions, which are generated when they are requested.

    split: "train", "valid", "test" or "held-out". "test" also has pairs of colour and shape (such as blue
        circles) that do not occur in "train" and "valid"; "held-out" has only objects of these pairs. "valid"
        has four other pairs that do not occur in "train".
    count: number of pictures. A larger count only adds pictures at the end.
    seed: random seed. The same split, seed and index always give the same picture and captions.
    captions: number of captions of each picture, 1 to 3, all different.

    Do not flip or crop these pictures: captions contain "left", "right", "top" and "bottom".

    >>> corpus = shapes("train", count=3)
    >>> len(corpus), corpus[1] == list(corpus)[1], corpus.images(range(3)).dtype
    (3, True, torch.uint8)
    """
    return Shapes(split, count, seed, captions)


def eighth(scene: Scene) -> int:
    """Return a hash of the scene, a number from 0 to 7. The hash decides to which split the scene belongs.

    The hash depends on the name of each object (size, colour and shape) and on its place (one of 3 x 3
    squares). It does not depend on the order of the objects.
    """
    content = " ".join(sorted(f"{each.name} {each.row} {each.column}" for each in scene.objects))
    return hashlib.blake2b(content.encode(), digest_size=8).digest()[0] % 8


def _scene(words: Iterator[int], kinds: tuple[Kind, ...]) -> Scene:
    """Build a scene from random integers.

    words: an iterator over random integers.
    kinds: the combinations (size, colour, shape) that objects may have.
    """
    squares, pool = list(range(9)), list(kinds)
    background = BACKGROUNDS[next(words) % len(BACKGROUNDS)]
    objects = []
    for _ in range(2 + next(words) % 3):
        # pop() removes the chosen square and kind, so that two objects never have the same square or the same
        # kind.
        row, column = divmod(squares.pop(next(words) % len(squares)), 3)
        size, colour, shape = pool.pop(next(words) % len(pool))
        radius = SIZES[size]
        free = SQUARE - 2 * radius
        x = SQUARE_STARTS[column] + radius + next(words) % free
        y = SQUARE_STARTS[row] + radius + next(words) % free
        red, green, blue = (each + TINTS[next(words) % len(TINTS)] for each in COLOURS[colour])
        objects.append(SceneObject(size, colour, shape, x, y, (red, green, blue)))
    return Scene(tuple(objects), background)
