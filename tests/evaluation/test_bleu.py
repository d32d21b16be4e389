"""BLEU, chrF and TER against hand computations."""

from __future__ import annotations

import math

import pytest

from regard.errors import ArgumentError, DataError, UnknownName
from regard.evaluation.bleu import bleu, chrf, ter


def test_bleu_equals_a_hand_computation():
    """6 words on each side: 5/6 unigrams, 3/5 bigrams, 2/4 trigrams, 1/3 4-grams; no brevity penalty."""
    score = bleu(["the cat sat on the mat"], ["the cat sat on a mat"])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert score.name == "BLEU" and "tok:13a" in score.signature and "nrefs:1" in score.signature


def test_short_translations_get_the_brevity_penalty():
    score = bleu(["the cat sat on"], ["the cat sat on the mat"])
    assert score.value == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_corpus_bleu_sums_counts_over_sentences():
    """Two sentences of five words: one is right, and in the other only the first word is right."""
    score = bleu(["a b c d e", "v x x x x"], ["a b c d e", "v w y z u"])
    assert score.value == pytest.approx(100 * (6 / 10 * 4 / 8 * 3 / 6 * 2 / 4) ** 0.25)


def test_several_references():
    references = [["the cat sits on the mat"], ["a cat sat on the mat"]]
    assert (
        bleu(["the cat sat on the mat"], references).value
        > bleu(["the cat sat on the mat"], references[0]).value
    )
    assert "nrefs:2" in bleu(["the cat sat on the mat"], references).signature


def test_case_and_tokenizer_are_in_the_signature():
    assert bleu(["A B C D"], ["a b c d"], lowercase=True).value == pytest.approx(100)
    assert "case:lc" in bleu(["A B C D"], ["a b c d"], lowercase=True).signature
    score = bleu(["고양이가 앉았다"], ["고양이는 앉았다"], tokenize="char")
    assert 0 < score.value < 100 and "tok:char" in score.signature


def test_chrf_is_100_for_equal_and_0_for_disjoint_text():
    assert chrf(["가나다"], ["가나다"]).value == 100 and chrf(["가나다"], ["xyz"]).value == 0
    assert chrf(["a b"], ["a b"], words=2).name == "chrF2++"
    assert "nw:2" in chrf(["a b"], ["a b"], words=2).signature


def test_chrf_equals_a_hand_computation():
    """1/2 of the unigrams and none of the bigrams match; longer n-grams do not exist: the mean of both."""
    assert chrf(["ab"], ["ac"]).value == pytest.approx(100 * (1 / 2 + 0) / 2)


def test_ter_counts_edits_and_shifts():
    assert ter(["a b c d"], ["a b x d"]).value == pytest.approx(25)
    assert ter(["c d a b"], ["a b c d"]).value == pytest.approx(25), "one shift of two words"
    assert ter(["a b"], ["a b"]).value == 0


@pytest.mark.parametrize("metric", [bleu, chrf, ter])
def test_iterators_can_be_scored(metric):
    result, right = ["the cat sat on it"], ["the cat sat on a mat"]
    for references in (iter(right), (iter(each) for each in [right])):
        assert metric(iter(result), references) == metric(result, right)


def test_tokenized_text_is_scored_without_a_warning(caplog, capfd):
    from sacrebleu.metrics import BLEU

    result = ["the cat sat on the mat ."] * 100
    plain = BLEU()
    expected = plain.corpus_score(result, [result]).score
    assert "tokenized period" in caplog.text
    caplog.clear()
    capfd.readouterr()
    score = bleu(result, result)
    assert caplog.text == "" and capfd.readouterr() == ("", "")
    assert (score.value, score.signature) == (expected, str(plain.get_signature()))


@pytest.mark.parametrize("metric", [bleu, chrf, ter])
def test_invalid_input_raises(metric):
    with pytest.raises(DataError, match=r"2 translations.* 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(DataError, match=r"1 translations.* 2 references"):
        metric(["a"], [["a"], ["a", "b"]])
    with pytest.raises(DataError, match="no translations"):
        metric([], [])
    with pytest.raises(ArgumentError, match="str"):
        metric("a", ["a"])
    with pytest.raises(ArgumentError, match=r"item 2 of translations.* list"):
        metric(["a", ["b"]], ["a", "b"])


def test_unknown_tokenizers_and_those_that_download_raise():
    for name in ("flores200", "13b"):
        with pytest.raises(UnknownName, match=f"'{name}'"):
            bleu(["a"], ["a"], tokenize=name)


def test_missing_tokenizer_raises_with_its_package(monkeypatch):
    import sacrebleu.metrics

    def refuse(**_: object) -> None:
        raise RuntimeError("extra dependencies")

    monkeypatch.setattr(sacrebleu.metrics, "BLEU", refuse)
    with pytest.raises(ArgumentError, match=r"(?s)'ko-mecab'.*sacrebleu\[ko\]"):
        bleu(["a"], ["a"], tokenize="ko-mecab")


def test_negative_words_raise():
    with pytest.raises(ArgumentError, match="words is -1"):
        chrf(["a"], ["a"], words=-1)
