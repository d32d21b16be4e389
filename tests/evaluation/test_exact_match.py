"""Exact match counts hypotheses that are equal to a reference."""

from __future__ import annotations

import pytest

from regard.errors import DataError
from regard.evaluation import exact_match


def test_exact_match_is_the_percentage_of_equal_sentences():
    score = exact_match(["42", "17", "3", "x"], ["42", "71", "3", "y"])
    assert (score.name, score.value) == ("exact match", 50.0) and "nrefs:1" in score.signature


def test_any_of_several_references_may_match():
    score = exact_match(["a", "b", "c"], [["a", "x", "x"], ["y", "b", "y"]])
    assert score.value == pytest.approx(200 / 3) and "nrefs:2" in score.signature


def test_lowercase_ignores_case():
    assert exact_match(["A b"], ["a B"]).value == 0.0
    assert exact_match(["A b"], ["a B"], lowercase=True).value == 100.0
    assert "case:lc" in exact_match(["A"], ["a"], lowercase=True).signature


def test_white_space_and_unicode_composition_are_normalised():
    assert exact_match(["caf\u00e9 au lait"], ["cafe\u0301  au\tlait "]).value == 100.0


def test_different_numbers_of_hypotheses_and_references_raise():
    with pytest.raises(DataError, match=r"exact_match\(\)"):
        exact_match(["a"], ["a", "b"])
