"""The corpus of shapes: reproducible, splits without shared scenes, pairs that training never shows."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch

from regard.data.shapes import (
    COLOURS,
    HELD_OUT,
    KINDS,
    PIXELS,
    RELATIONS,
    SHAPES,
    SIZES,
    SPLITS,
    VALID_PAIRS,
    Scene,
    Shapes,
    eighth,
    shapes,
)
from regard.errors import ArgumentError, UnknownName

COUNT = 200


def pairs(scene: Scene) -> set[tuple[str, str]]:
    return {(each.colour, each.shape) for each in scene.objects}


def test_the_corpus_is_reproducible_and_depends_on_seed_split_and_index():
    corpus = shapes("train", 5)
    assert list(corpus) == list(shapes("train", 5)) == [shapes("train", 9)[index] for index in range(5)]
    assert corpus.images(range(5)).equal(shapes("train", 100).images(numpy.arange(5)))
    examples = [shapes(split, 2, seed)[index] for split in SPLITS for seed in (0, 1) for index in (0, 1)]
    assert len(set(examples)) == len(examples)
    assert shapes("train", 5, captions=2)[3].captions == corpus[3].captions[:2]


def test_these_captions_never_change():
    assert [shapes(split, 1)[0].captions[0] for split in SPLITS] == [
        "a small orange triangle at the top right and a small blue triangle at the right",
        "a small brown circle above a small pink diamond",
        "a small red square at the top left",
        "a large orange cross at the top left",
    ]


def test_scenes_have_what_the_documentation_promises():
    scenes = [shapes("test", COUNT).scene(index) for index in range(COUNT)]
    assert {len(scene.objects) for scene in scenes} == {2, 3, 4}
    things = [each for scene in scenes for each in scene.objects]
    assert {each.shape for each in things} == set(SHAPES) and {each.size for each in things} == set(SIZES)
    assert {each.colour for each in things} == set(COLOURS)
    assert {(each.row, each.column) for each in things} == set(itertools.product(range(3), repeat=2))
    for scene in scenes:
        assert len({each.name for each in scene.objects}) == len(scene.objects)
        for first, second in itertools.combinations(scene.objects, 2):
            holding = {name for name, holds in RELATIONS.items() if holds(first, second)}
            assert 1 <= len(holding) <= 2
            assert ("left of" in holding) == (first.column < second.column)
            assert ("above" in holding) == (first.row < second.row)
        for each in scene.objects:
            assert min(each.box) >= 0 and max(each.box) <= PIXELS
            assert all(0 <= value <= 255 for value in each.tint)


def has_held_out(scene: Scene) -> bool:
    return any((each.colour, each.shape) in HELD_OUT for each in scene.objects)


def test_training_never_shows_the_held_out_pairs():
    seen = {split: [shapes(split, 2 * COUNT).scene(i) for i in range(2 * COUNT)] for split in SPLITS}
    for split, unseen in (("train", HELD_OUT | VALID_PAIRS), ("valid", HELD_OUT)):
        assert not any(map(has_held_out, seen[split]))
        assert set().union(*map(pairs, seen[split])) == {kind[1:] for kind in KINDS} - unseen
    assert 0.15 < sum(map(has_held_out, seen["test"])) / (2 * COUNT) < 0.25
    assert set().union(*map(pairs, seen["test"])) >= HELD_OUT
    assert set().union(*map(pairs, seen["held-out"])) == HELD_OUT
    # The validation pairs are other pairs; no colour has two shapes that training never shows with it.
    unseen = HELD_OUT | VALID_PAIRS
    assert len(HELD_OUT) == len(VALID_PAIRS) == 4
    assert len({colour for colour, _ in unseen}) == len(unseen) == 8
    assert unseen <= set(itertools.product(COLOURS, SHAPES))


def test_splits_share_no_scene():
    for name, split in SPLITS.items():
        assert {eighth(shapes(name, 50, seed=7).scene(i)) for i in range(50)} <= split.eighths
    splits = {name: split for name, split in SPLITS.items() if name != "held-out"}
    for (_, first), (_, second) in itertools.combinations(splits.items(), 2):
        assert not first.eighths & second.eighths
    assert not set(SPLITS["held-out"].kinds) & set(SPLITS["train"].kinds)
    assert not SPLITS["held-out"].eighths & SPLITS["test"].eighths
    scene = shapes("train", 1).scene(0)
    assert eighth(scene) == eighth(Scene(scene.objects[::-1], 0))


def test_an_empty_corpus():
    corpus = shapes("train", 0)
    assert len(corpus) == 0 and list(corpus) == [] and corpus.images([]).shape == (0, 3, 64, 64)
    assert corpus.images([]).dtype == torch.uint8


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_an_index_outside_the_corpus(index: int):
    with pytest.raises(IndexError):
        shapes("train", 3)[index]


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", -1), ("count", 1.5), ("seed", -1), ("seed", "0"), ("captions", 0), ("captions", 5)],
)
def test_bad_arguments_are_named(name: str, value: object):
    with pytest.raises(ArgumentError, match=name):
        Shapes(**{"split": "train", "count": 3, name: value})


def test_an_unknown_split_lists_the_known_ones():
    with pytest.raises(UnknownName, match="held-out"):
        shapes("dev", 3)


def test_the_fingerprint_depends_on_all_arguments():
    corpora = [
        shapes("train", 3),
        shapes("valid", 3),
        shapes("train", 4),
        shapes("train", 3, 1),
        shapes("train", 3, 0, 2),
    ]
    assert len({corpus.fingerprint for corpus in corpora}) == 5
    assert corpora[0].fingerprint == shapes("train", 3).fingerprint and "seed=1" in repr(corpora[3])
