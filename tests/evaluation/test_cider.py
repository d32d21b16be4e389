"""CIDEr-D against values worked out by hand from its definition (Vedantam et al. 2015)."""

from __future__ import annotations

import math
import random

import pytest

from regard.errors import ArgumentError, DataError
from regard.evaluation import CiderD

TWO = [["a dog runs"], ["two red birds"]]
"""Every n-gram is in the references of one of two images: each has the weight L = log 2 per occurrence."""


def first(caption: str, references: list[list[str]]) -> float:
    """The CIDEr-D of a caption of the first image."""
    return CiderD(references).image_scores([caption] + ["x"] * (len(references) - 1))[0]


def test_a_caption_equal_to_its_reference():
    """Three of the four cosines are 1; three words have no 4-gram. With four words, all four are 1."""
    assert first("a dog runs", TWO) == pytest.approx(10 * 3 / 4)
    assert first("a dog runs fast", [["A dog runs fast ."], ["two red birds"]]) == pytest.approx(10)


def test_counts_are_clipped_to_those_of_the_reference():
    """n = 1: min(3 L, L) L / (3 L * sqrt(3) L) = 1 / (3 sqrt 3); the bigram "dog dog" is in no reference."""
    assert first("dog dog dog", TWO) == pytest.approx(10 / (3 * math.sqrt(3)) / 4)


def test_repeated_words_of_the_reference_match_as_often_as_they_occur_there():
    """n = 1: c = (2 L, L), s = (2 L, 2 L): (2 * 2 + 1 * 2) / (sqrt 5 sqrt 8). n = 2 and 3: see below."""
    references = [["dog dog cat cat"], ["two red birds"]]
    expected = math.exp(-1 / 72) * (6 / math.sqrt(40) + 2 / math.sqrt(6) + 1 / math.sqrt(2)) / 4
    # Bigrams: c = dog dog, dog cat; s = dog dog, dog cat, cat cat. Trigrams: c = dog dog cat; s has two.
    assert first("dog dog cat", references) == pytest.approx(10 * expected)


def test_a_difference_in_length_is_penalised():
    """One word too few: exp(-1 / 72). n = 1: 2 / (sqrt 2 sqrt 3). n = 2: 1 / (1 sqrt 2)."""
    expected = math.exp(-1 / 72) * (2 / math.sqrt(6) + 1 / math.sqrt(2)) / 4
    assert first("a dog", TWO) == pytest.approx(10 * expected)
    longer = "a dog runs " + "x " * 12  # 12 words too many: exp(-144 / 72) = exp(-2)
    unigrams = 3 / math.sqrt(3 + 12**2) / math.sqrt(3)
    bigrams = 2 / math.sqrt(2 + 1 + 11**2) / math.sqrt(2)
    trigrams = 1 / math.sqrt(1 + 2 + 10**2)
    assert first(longer, TWO) == pytest.approx(10 * math.exp(-2) * (unigrams + bigrams + trigrams) / 4)


def test_counts_are_not_divided_by_the_length_of_the_sentence():
    """As in the authors' code: min(L, L) L / (L sqrt(3) L). With frequencies it would be a third of this."""
    assert first("dog", TWO) == pytest.approx(10 * math.exp(-4 / 72) / math.sqrt(3) / 4)


def test_words_of_every_image_have_no_weight_and_rare_words_more():
    references = [["red dog"], ["red cat"], ["blue bird"]]
    red, dog = math.log(3 / 2), math.log(3)
    norm = math.hypot(red, dog)
    penalty = math.exp(-1 / 72)
    assert first("red", references) == pytest.approx(10 * penalty * red / norm / 4)
    assert first("dog", references) == pytest.approx(10 * penalty * dog / norm / 4)
    # An n-gram that is in no reference has the weight log(3 / 1).
    expected = red * red / (math.hypot(red, math.log(3)) * norm)
    assert first("red zebra", references) == pytest.approx(10 * expected / 4)
    everywhere = [["a dog"], ["a cat"], ["a bird"]]
    assert first("a", everywhere) == 0
    assert first("a dog", everywhere) == pytest.approx(10 * 2 / 4)


def test_several_references_are_averaged_and_count_once_per_image():
    references = [["a dog runs", "a dog runs", "it"], ["two red birds"]]
    assert first("a dog runs", references) == pytest.approx(10 * (3 / 4 + 3 / 4 + 0) / 3)


def test_the_corpus_score_is_the_mean_over_images():
    score = CiderD(iter(map(iter, TWO))).score(["a dog runs", "one white horse"])
    assert score.value == pytest.approx(7.5 / 2) and score.name == "CIDEr-D"
    assert {"nrefs:1", "n:4", "sigma:6"} <= set(score.signature.split("|"))
    assert "nrefs:1-2" in CiderD([["a", "b"], ["c"]]).score(["x", "y"]).signature


def test_one_image_and_captions_without_words_score_zero():
    assert CiderD([["a dog runs"]]).score(["a dog runs"]).value == 0
    assert CiderD(TWO).image_scores(["", "."]) == [0, 0]


def test_scores_are_between_0_and_10_and_the_reference_itself_is_best():
    rng, words = random.Random(0), ["a", "the", "red", "blue", "dog", "cat", "runs", "sits", "on", "mat"]
    sentences = [[" ".join(rng.choices(words, k=rng.randint(1, 9)))] for _ in range(40)]
    metric = CiderD(sentences)
    perfect = metric.image_scores([each for (each,) in sentences])
    other = metric.image_scores([each for (each,) in reversed(sentences)])
    assert all(0 <= score <= best + 1e-9 <= 10 + 2e-9 for score, best in zip(other, perfect, strict=True))


@pytest.mark.parametrize(
    ("captions", "references", "error"),
    [
        ("a dog", TWO, ArgumentError),
        (["a dog"], TWO, DataError),
        (["a dog", None], TWO, ArgumentError),
        ([], [], DataError),
        (["a dog"], [[]], DataError),
        (["a dog"], [["..."]], DataError),
        (["a dog"], ["a dog"], ArgumentError),
        (["a dog"], [[7]], ArgumentError),
        (["a dog"], [7], ArgumentError),
        (["a dog"], "a dog", ArgumentError),
    ],
)
def test_bad_arguments(captions, references, error: type[Exception]):
    with pytest.raises(error, match=r"CiderD[.(]"):
        CiderD(references).score(captions)
