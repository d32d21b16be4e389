"""Captions of scenes: generate them, check whether a caption is true, and find the region of each word.

The grammar of a caption, where [ ] is optional and * means any number of times:

    caption  = clause ("and" clause)*
    clause   = object [relation object | place]
    object   = "a" [size] [colour] shape
    relation = "left of" | "right of" | "above" | "below"
    place    = "at the top left" | ... | "in the middle"

Generated captions give the size and the colour of each object. They name the objects in reading order, from
top left to bottom right. So the picture and the previous words determine which object is named next, and
where a captioner should attend.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.shapes.scene_rendering import object_mask
from regard.data.shapes.scenes import (
    COLOURS,
    PIXELS,
    PLACES,
    RELATIONS,
    SHAPES,
    SIZES,
    Box,
    Scene,
    SceneObject,
)
from regard.errors import ArgumentError, message, positive, printable

__all__ = ["Region", "all_captions", "is_valid", "word_regions"]

FUNCTION_WORDS = frozenset({"a", "and", "at", "in", "of", "the"})
"""The words of captions that describe no part of the picture. All other words are content words."""

PLACE_WORDS = {tuple(name.split()): name for name in PLACES}
RELATION_WORDS = {tuple(name.split()): name for name in RELATIONS}
"""Words -> name, for all places (PLACE_WORDS) and relations (RELATION_WORDS): ("left", "of") -> "left of"."""


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
    """Return whether a caption is true of a scene and follows the grammar of scene_captions.py.

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

    def add_words(self, words: Sequence[str], start: int, end: int, *phrases: int) -> None:
        for at in range(start, end):
            if words[at] not in FUNCTION_WORDS:
                self.content[at] = phrases


def _words(caption: str) -> list[str]:
    words = caption.lower().split()
    if words and words[-1].endswith("."):
        words[-1:] = [words[-1][:-1]] if len(words[-1]) > 1 else []
    return words


def _parse(words: list[str]) -> _Statement | None:
    """Parse the words of a caption; return None if they do not follow the grammar at the top of this file."""
    statement = _Statement()
    at: int | None = -1
    while at is not None and at < len(words) and (at == -1 or words[at] == "and"):
        at = _clause(words, at + 1, statement)
    return statement if at == len(words) else None


def _clause(words: list[str], start: int, statement: _Statement) -> int | None:
    """Parse a clause of a caption, such as "a circle above a square", and add it to the statement.

    words: the words of the whole caption.
    start: the index of the first word of the clause.

    Returns the index of the first word after the clause; None if the words are not a clause.
    """
    at = _object(words, start, statement)
    if at is None:
        return None
    subject = len(statement.phrases) - 1
    if (found := _longest(words, at, PLACE_WORDS)) is not None:
        end, place = found
        statement.places[subject] = place
        statement.add_words(words, at, end, subject)
        return end
    if (found := _longest(words, at, RELATION_WORDS)) is not None:
        end, relation = found
        statement.relations.append((relation, subject, subject + 1))
        statement.add_words(words, at, end, subject, subject + 1)
        return _object(words, end, statement)
    return at


def _object(words: list[str], start: int, statement: _Statement) -> int | None:
    if words[start : start + 1] != ["a"]:
        return None
    at, attributes = start + 1, []
    for names in (SIZES, COLOURS):
        if at < len(words) and words[at] in names:
            attributes.append(words[at])
            at += 1
    if at >= len(words) or words[at] not in SHAPES:
        return None
    statement.phrases.append(frozenset((*attributes, words[at])))
    statement.add_words(words, start, at + 1, len(statement.phrases) - 1)
    return at + 1


def _longest(words: list[str], start: int, names: dict[tuple[str, ...], str]) -> tuple[int, str] | None:
    """Find the longest place or relation whose words begin at index `start` of a caption.

    names: words -> name of all places, or of all relations.

    Returns the index of the first word after the place or relation, and its name; None if none begins there.
    """
    matches = [key for key in names if tuple(words[start : start + len(key)]) == key]
    if not matches:
        return None
    key = max(matches, key=len)
    return start + len(key), names[key]
