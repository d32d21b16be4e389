"""The built-in corpus `shapes`: random pictures of simple shapes, with captions, in separate splits.

Some pairs of colour and shape do not occur in the training split. The pairs in VALID_PAIRS occur in the
validation split, so that settings can be chosen for unseen pairs. The pairs in HELD_OUT occur only in the
test splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from regard.data.shapes.scenes import (
    COLOURS,
    SHAPES,
    SIZES,
    SQUARE,
    SQUARE_STARTS,
    Scene,
    SceneObject,
    all_captions,
    render,
)
from regard.errors import ArgumentError, UnknownName, message

__all__ = [
    "CAPTIONS",
    "HELD_OUT",
    "SPLITS",
    "VALID_PAIRS",
    "VERSION",
    "Shapes",
    "ShapesExample",
    "shapes",
]

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
