"""BLEU-1 to 4 of captions without brevity penalty, against hand computations."""

from __future__ import annotations

import pytest

from regard.errors import ArgumentError, DataError
from regard.evaluation import caption_bleu, caption_words


def values(captions: list[str], references: list[list[str]]) -> list[float]:
    return [score.value for score in caption_bleu(captions, references)]


def test_precisions_by_hand():
    """5/6 unigrams, 3/5 bigrams, 2/4 trigrams, 1/3 4-grams, as in the test of bleu()."""
    expected = [5 / 6, 5 / 6 * 3 / 5, 5 / 6 * 3 / 5 * 2 / 4, 5 / 6 * 3 / 5 * 2 / 4 * 1 / 3]
    assert values(["The cat sat on the mat."], [["the cat sat on a mat"]]) == pytest.approx(
        [100 * product ** (1 / order) for order, product in enumerate(expected, 1)]
    )


def test_counts_are_clipped_by_the_reference_with_most_of_them():
    """Papineni et al. 2002, example 2: "the" occurs twice in one reference: 2 of 7 unigrams match."""
    references = [["the cat is on the mat", "there is a cat on the mat"]]
    assert values(["the the the the the the the"], references) == pytest.approx([200 / 7, 0, 0, 0])


def test_a_short_caption_is_not_penalised():
    assert values(["the cat sat on"], [["the cat sat on the mat"]]) == pytest.approx([100] * 4)


def test_counts_are_summed_over_the_corpus_before_dividing():
    scores = values(["a b c d e", "v x"], [["a b c d e"], ["v w", "x"]])
    expected = [7 / 7, 4 / 5, 3 / 3, 2 / 2]
    assert scores[0] == pytest.approx(100) and scores[1] == pytest.approx(100 * (4 / 5) ** 0.5)
    assert scores[3] == pytest.approx(100 * (expected[0] * expected[1]) ** 0.25)


def test_captions_without_words_or_with_few_words():
    assert values([""], [["a dog"]]) == [0] * 4
    assert values(["a"], [["a dog"]]) == pytest.approx([100, 0, 0, 0])
    (one, *_) = caption_bleu(["a", ""], [["a dog"], ["a cat", "cats"]])
    assert one.value == 100 and {"bp:no", "nrefs:1-2"} <= set(one.signature.split("|"))


@pytest.mark.parametrize(("captions", "references"), [(["a"], [["b"], ["c"]]), ([], []), (["a"], [["!"]])])
def test_bad_data(captions: list[str], references: list[list[str]]):
    with pytest.raises(DataError, match=r"caption_bleu\(\)"):
        caption_bleu(captions, references)
    with pytest.raises(ArgumentError, match="image 1"):
        caption_bleu(["a"], ["a"])


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man, in a T-shirt .", "a man in a t-shirt"),
        ("dog's", "dog 's"),
        ("dog ’s", "dog 's"),
        ("3 a.m. -- 'quoted'", "3 a m quoted"),
        ("빨간 원이 있다.", "빨간 원이 있다"),
        ("snake_case", "snake case"),
        ("!?", ""),
    ],
)
def test_words_of_captions(caption: str, words: str):
    assert caption_words(caption) == words.split()
