"""ScoredText: perplexity per token and per word of one line."""

from __future__ import annotations

import math

import pytest

from regard.tasks.language.text_result import ScoredText


@pytest.mark.parametrize(
    ("text", "pieces", "words"),
    [("at sea", ("a", "t", "sea", "</s>"), 2), ("sea", ("sea", "</s>"), 1), ("", ("</s>",), 0)],
)
def test_the_end_of_the_line_is_a_word(text: str, pieces: tuple[str, ...], words: int):
    scored = ScoredText(
        text, tuple(range(len(pieces))), pieces, tuple(-1.0 - each for each in range(len(pieces)))
    )
    total = -sum(scored.token_scores)
    assert scored.words == words and scored.perplexity == pytest.approx(math.exp(total / len(pieces)))
    assert scored.word_perplexity == pytest.approx(math.exp(total / (words + 1)))
    record = scored.to_dict()
    assert (record["words"], record["line_ends"]) == (words, 1)
    assert record["word_perplexity"] == scored.word_perplexity


def test_an_infinite_perplexity_is_null_in_json():
    assert ScoredText("a", (4, 3), ("a", "</s>"), (-1e6, 0.0)).to_dict()["word_perplexity"] is None
