"""evaluate_corpus() returns the same scores as the single functions."""

from __future__ import annotations

import pytest

from regard.errors import DataError
from regard.evaluation import bleu, chrf, evaluate_corpus, exact_match, moses_bleu, ter
from tests.facts import facts

OURS = ["The cat sat on the mat .", "A dog barks."]
THEIRS = ["the cat sat on a mat.", "A dog barked."]


def test_report_has_every_score():
    each = [bleu(OURS, THEIRS), chrf(OURS, THEIRS), ter(OURS, THEIRS), exact_match(OURS, THEIRS)]
    assert evaluate_corpus(OURS, THEIRS) == each
    with_moses = evaluate_corpus(OURS, THEIRS, moses="en")
    assert [score.name for score in with_moses] == ["BLEU", "chrF2", "TER", "exact match", "Moses BLEU"]
    assert with_moses[-1] == moses_bleu(OURS, THEIRS)


def test_lowercase_ignores_case():
    lower = evaluate_corpus(OURS, THEIRS, lowercase=True)
    plain = evaluate_corpus(OURS, THEIRS)
    assert lower[0] == bleu(OURS, THEIRS, lowercase=True) and lower[0].value > plain[0].value
    assert lower[1] == chrf(OURS, THEIRS, lowercase=True) and lower[1].value > plain[1].value
    assert all("case:lc" in score.signature for score in lower) and "case:mixed" in plain[1].signature


def test_iterators_are_read_once():
    again = evaluate_corpus(iter(OURS), iter([iter(THEIRS), iter(OURS)]), tokenize="char")
    assert again == evaluate_corpus(OURS, [THEIRS, OURS], tokenize="char")
    assert "tok:char" in again[0].signature and "nrefs:2" in again[2].signature


def test_invalid_input_raises():
    with pytest.raises(DataError, match=facts("evaluate_corpus()", 2, 1)):
        evaluate_corpus(OURS, THEIRS[:1])
