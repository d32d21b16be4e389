"""Scores of captions, and the pointing accuracy of their attention."""

from __future__ import annotations

import numpy
import pytest

from regard.data.shapes import shapes, word_regions
from regard.evaluation.bleu import bleu
from regard.evaluation.caption_metrics import CiderD, caption_scores, exact_captions, pointing


def test_scores_with_different_numbers_of_references():
    captions = ["a dog runs on grass", "two red birds in a tree"]
    references = [["a dog runs on the grass", "the dog"], ["two birds in a tree"]]
    scores = caption_scores(captions, references)
    assert scores["cider"].value == CiderD(references).score(captions).value
    filled = [["a dog runs on the grass", "two birds in a tree"], ["the dog", "two birds in a tree"]]
    assert scores["bleu"].value == bleu(captions, filled).value


@pytest.mark.parametrize("side", [8, 16])
def test_pointing_is_perfect_for_maps_of_the_gold_regions(side: int):
    corpus = shapes("valid", 4)
    scenes, captions = zip(*((each.scene, each.captions[0]) for each in corpus), strict=True)
    maps = []
    for scene, caption in zip(scenes, captions, strict=True):
        regions = word_regions(scene, caption)
        empty = numpy.zeros((side, side))
        maps.append(numpy.stack([empty if each is None else each.cells(side) / 1.0 for each in regions]))
    perfect = pointing(captions, maps, scenes)
    assert perfect.accuracy == 1 and 0 < perfect.chance < 0.5
    away = pointing(captions, [1 - each for each in maps], scenes)
    assert away.accuracy == 0 and away.words == perfect.words and away.chance == perfect.chance
    assert exact_captions(captions, scenes) == 1


def test_untrue_captions_have_no_regions():
    scene = shapes("valid", 1)[0].scene
    result = pointing(["a a a"], [numpy.ones((3, 8, 8))], [scene])
    assert result == (0.0, 0.0, 0) and exact_captions(["a a a"], [scene]) == 0
