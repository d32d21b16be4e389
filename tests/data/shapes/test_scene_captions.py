"""Captions: the generated ones are true, changed ones are not, and each content word has its region."""

from __future__ import annotations

import itertools

import numpy
import pytest

from regard.data.shapes import (
    COLOURS,
    FUNCTION_WORDS,
    PLACES,
    RELATIONS,
    SHAPES,
    Region,
    Scene,
    SceneObject,
    all_captions,
    is_valid,
    shapes,
    word_regions,
)
from regard.errors import ArgumentError

CIRCLE = SceneObject("small", "red", "circle", x=10, y=10, tint=(214, 40, 40))
SQUARE = SceneObject("large", "blue", "square", x=50, y=52, tint=(40, 80, 214))
OTHER = SceneObject("large", "red", "circle", x=32, y=11, tint=(214, 40, 40))
TWO, THREE = Scene((CIRCLE, SQUARE)), Scene((CIRCLE, SQUARE, OTHER))

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@pytest.mark.parametrize(
    "caption",
    [
        "a small red circle above a large blue square",
        "A Small Red Circle Above A Large Blue Square .",
        "a circle left of a square.",
        "a square",
        "a blue square right of a small circle",
        "a circle at the top",
        "a circle at the left",
        "a circle at the top left and a square at the bottom right",
        "a circle and a square below a large red circle",
        "a red circle and a red circle",
        "a large circle right of a small circle and a square",
    ],
)
def test_true_captions(caption: str):
    assert is_valid(THREE, caption)


@pytest.mark.parametrize(
    "caption",
    [
        "",
        ".",
        "a",
        "and",
        "a circle and",
        "a circle above",
        "a circle above a",
        "circle above square",
        "the circle above a square",
        "a red small circle",
        "a red",
        "a circle of a square",
        "a circle left a square",
        "a circle at the middle",
        "a circle at the top of a square",
        "a circle above a square left of a circle",
        "a cross",
        "a blue circle",
        "a large blue square above a small red circle",
        "a square at the top",
        "a circle in the middle",
        "a square and a square",
        "a circle and a circle and a circle",
        "a circle and a square and a circle and a circle",
        "a circle 빨간",
        "a small red circle\x1b above a square",
    ],
)
def test_captions_outside_the_grammar_or_untrue(caption: str):
    assert not is_valid(THREE, caption)
    with pytest.raises(ArgumentError, match=r"word_regions\(\)"):
        word_regions(THREE, caption)


def test_every_generated_caption_is_valid_and_its_opposite_is_not():
    for split in ("train", "held-out"):
        for scene, captions in shapes(split, 40, seed=3):
            generated = all_captions(scene)
            assert set(captions) <= set(generated) and len(set(generated)) == len(generated) >= 3
            for caption in generated:
                assert is_valid(scene, caption)
                for relation in RELATIONS:
                    if f" {relation} " in caption:
                        assert not is_valid(scene, caption.replace(relation, OPPOSITE[relation]))


def test_generated_captions_name_objects_in_reading_order():
    for scene, captions in shapes("train", 40, seed=2):
        first, second = sorted(scene.objects, key=lambda each: (each.row, each.column))[:2]
        for caption in captions:
            assert caption.startswith(f"a {first.name} ")
            assert caption.count("a ") == 1 or f" a {second.name}" in caption


def test_a_caption_with_one_other_attribute_is_invalid_unless_such_an_object_exists():
    for scene, captions in shapes("train", 20, seed=1):
        names = {each.name for each in scene.objects}
        for caption in captions:
            words = caption.split()
            for at, other in itertools.product((2, 3), (*COLOURS, *SHAPES)):
                changed = [*words[:at], other, *words[at + 1 :]]
                if " ".join(changed[1:4]) not in names:
                    assert not is_valid(scene, " ".join(changed))


def objects_of(regions: list[Region | None]) -> list[tuple[SceneObject, ...] | None]:
    return [None if region is None else region.objects for region in regions]


def test_regions_of_objects_relations_and_places():
    assert objects_of(word_regions(TWO, "a small red circle left of a square .")) == [
        None,
        (CIRCLE,),
        (CIRCLE,),
        (CIRCLE,),
        (CIRCLE, SQUARE),
        None,
        None,
        (SQUARE,),
        None,
    ]
    assert objects_of(word_regions(TWO, "a Square at the bottom right and a circle.")) == [
        None,
        (SQUARE,),
        None,
        None,
        (SQUARE,),
        (SQUARE,),
        None,
        None,
        (CIRCLE,),
    ]


def test_a_phrase_that_fits_several_objects_has_all_of_them_as_region():
    regions = word_regions(THREE, "a red circle above a square")
    assert objects_of(regions) == [
        None,
        (CIRCLE, OTHER),
        (CIRCLE, OTHER),
        (CIRCLE, SQUARE, OTHER),
        None,
        (SQUARE,),
    ]
    # "left of" excludes one of the two circles.
    regions = word_regions(THREE, "a circle left of a large red circle")
    assert objects_of(regions)[1] == (CIRCLE,) and objects_of(regions)[-1] == (OTHER,)


def test_every_content_word_of_a_generated_caption_has_a_region():
    for scene, captions in shapes("test", 20):
        for caption in captions:
            for word, region in zip(caption.split(), word_regions(scene, caption), strict=True):
                assert (region is None) == (word in FUNCTION_WORDS)
                if region is not None:
                    assert region.mask().any() and region.cells(8).any()


@pytest.mark.parametrize("side", [1, 7, 8, 14, 64])
def test_cells_of_a_feature_map_contain_exactly_the_pixels_of_the_mask(side: int):
    region = Region((CIRCLE, SQUARE))
    mask, cells = region.mask(), region.cells(side)
    assert mask.shape == (64, 64) and mask.dtype == bool and cells.shape == (side, side)
    at = numpy.arange(64) * side // 64
    expected = numpy.zeros((side, side), bool)
    for y, x in zip(*numpy.nonzero(mask), strict=True):
        expected[at[y], at[x]] = True
    assert (cells == expected).all()
    assert mask[10, 10] and mask[52, 50] and not mask[0, 63]


@pytest.mark.parametrize("side", [0, -1, 65, 2.0, True])
def test_cells_of_an_impossible_feature_map(side):
    with pytest.raises(ArgumentError, match="side"):
        Region((CIRCLE,)).cells(side)


def test_places_are_named_by_their_square():
    for row, column in itertools.product(range(3), repeat=2):
        thing = CIRCLE._replace(x=10 + 22 * column, y=10 + 22 * row)
        expected = f"{('top', '', 'bottom')[row]} {('left', '', 'right')[column]}".strip()
        assert thing.place == (f"at the {expected}" if expected else "in the middle")
        holds = {name for name in PLACES if thing.is_at(name)}
        assert thing.place in holds and len(holds) == (1, 1, 3)[(row != 1) + (column != 1)]
