"""Syllables come apart and together again, all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.korean.hangul import close, final, join, split
from regard.errors import ArgumentError

SYLLABLES = st.integers(ord("가"), ord("힣")).map(chr)


def test_every_syllable_is_the_sum_of_its_parts():
    assert all(join(*split(chr(code))) == chr(code) for code in range(ord("가"), ord("힣") + 1))


@given(
    word=st.text(SYLLABLES, min_size=1, max_size=4), consonant=st.sampled_from(["", "ㄴ", "ㄹ", "ㅂ", "ㅆ"])
)
def test_closing_changes_the_last_final_alone(word: str, consonant: str):
    closed = close(word, consonant)
    assert final(closed) == consonant
    assert closed[:-1] == word[:-1] and split(closed[-1])[:2] == split(word[-1])[:2]


@pytest.mark.parametrize("text", ["", "ㄱ", "a", "가나", "!"])
def test_what_is_no_syllable_is_refused(text: str):
    with pytest.raises(ArgumentError, match="is not one Hangul syllable"):
        split(text)
