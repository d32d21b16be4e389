"""Moses BLEU: the tokenization of the Moses scripts, and BLEU without smoothing."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter

import pytest

from regard.errors import ArgumentError, DataError, UnknownName
from regard.evaluation import bleu, moses_bleu
from regard.evaluation.bleu import moses_words
from tests.facts import facts


def by_definition(translations: list[str], references: list[list[str]]) -> float:
    """Corpus BLEU-4 of white-space tokens (Papineni et al. 2002, section 2)."""
    right, all_of_them, ours, theirs = [0] * 4, [0] * 4, 0, 0
    for number, translation in enumerate(translations):
        said, others = translation.split(), [each[number].split() for each in references]
        ours += len(said)
        theirs += min((abs(len(other) - len(said)), len(other)) for other in others)[1]
        for n in range(1, 5):
            known: Counter[tuple[str, ...]] = Counter()
            for other in others:
                known |= grams(other, n)
            right[n - 1] += (grams(said, n) & known).total()
            all_of_them[n - 1] += grams(said, n).total()
    if min(right) == 0:
        return 0.0
    brevity = min(0.0, 1 - theirs / ours)
    precisions = [math.log(r / a) for r, a in zip(right, all_of_them, strict=True)]
    return 100 * math.exp(brevity + sum(precisions) / 4)


def grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def test_moses_bleu_equals_a_hand_computation():
    """Nine words on each side, one of them wrong: 8/9 unigrams, 6/8 bigrams, 4/7 trigrams, 2/6 4-grams."""
    ours, theirs = "A man's dog runs fast, today.", "A MAN'S dog runs far, today."
    assert moses_words()(ours) == "a man 's dog runs fast , today ."
    expected = 100 * (8 / 9 * 6 / 8 * 4 / 7 * 2 / 6) ** 0.25
    assert moses_bleu([ours], [theirs]).value == pytest.approx(expected)


def test_zero_precision_gives_zero():
    """A trigram matches but no 4-gram, so the product of the precisions is 0."""
    ours, theirs = ["A man's dog runs."], ["A man's cat runs!"]
    assert moses_bleu(ours, theirs).value == 0 < bleu(ours, theirs).value


def test_short_translations_get_the_brevity_penalty():
    score = moses_bleu(["the cat sat on the"], ["The cat sat on the mat."])
    assert score.value == pytest.approx(100 * math.exp(1 - 7 / 5))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_moses_bleu_equals_the_definition_on_random_sentences(count):
    dice = random.Random(count)

    def sentences() -> list[str]:
        return [" ".join(dice.choices("abcd", k=dice.randrange(1, 12))) for _ in range(30)]

    for _ in range(10):
        ours, theirs = sentences(), [sentences() for _ in range(count)]
        score = moses_bleu(ours, theirs)
        assert score.value == pytest.approx(by_definition(ours, theirs))
        assert score.signature.startswith(f"nrefs:{count}|")


def test_moses_and_intl_tokenizers_agree_except_for_hyphens():
    """On simple sentences, Moses and sacrebleu's international tokenizer give the same words."""
    ours = ["A man in a red shirt rides a bicycle.", "Two dogs play in the snow, and a boy looks on."]
    theirs = ["A man in a red coat rides a bicycle.", "Two dogs run in the snow, and a boy looks on."]
    assert moses_bleu(ours, theirs).value == pytest.approx(
        bleu(ours, theirs, tokenize="intl", lowercase=True).value
    )
    hyphens = ["A well-known man rides a bicycle."], ["A little-known man rides a bicycle."]
    assert moses_bleu(*hyphens).value < bleu(*hyphens, tokenize="intl", lowercase=True).value


@pytest.mark.parametrize(
    ("language", "sentence", "words"),
    [
        ("en", "The 5,300 T-shirts, e.g. “red” ones...", 'the 5,300 t-shirts , e.g. " red " ones ...'),
        ("de", "Ein Mann  spielt z.B. „Fußball“.", 'ein mann spielt z.b. " fußball " .'),
        ("de", "ÜBER DEN DÄCHERN", "über den dächern"),
        ("fr", "L'homme d’à côté", "l' homme d \" à côté"),  # the output of the Perl script
        ("ko", "나는 '고양이'로소이다.", "나는 ' 고양이 ' 로소이다 ."),
        ("en", "a < b & c | [d]", "a < b & c | [ d ]"),
        ("en", "", ""),
        ("en", "\u3000 \x00\t", ""),
    ],
)
def test_words_equal_those_of_the_moses_scripts(language, sentence, words):
    assert moses_words(language)(sentence) == words


def test_signature_has_every_setting():
    score = moses_bleu(["ein haus"], ["ein haus"], "de")
    assert score.name == "Moses BLEU" and score.value == 0, "no four words"
    for part in ("case:lc", "tok:moses-de", "norm:moses-de", "smooth:none", "sacremoses:", "version:"):
        assert f"|{part}" in score.signature


def test_empty_translations_are_scored():
    assert 0 < moses_bleu(["", "a b c d e"], ["x", "a b c d e"]).value < 100
    assert moses_bleu([""], ["a"]).value == 0


def test_invalid_input_raises():
    with pytest.raises(DataError, match=facts("moses_bleu()", 2, 1)):
        moses_bleu(["a", "b"], ["a"])
    with pytest.raises(DataError, match="translations"):
        moses_bleu([], [])
    with pytest.raises(UnknownName, match=facts("'dee'", "'de'")):
        moses_bleu(["a"], ["a"], "dee")


def test_missing_package_raises_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ArgumentError, match=facts("sacremoses", "pip", "'sacremoses>=")):
        moses_bleu(["a"], ["a"])
