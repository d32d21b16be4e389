"""All Hangul syllables can be split and joined again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.korean.lexicon import close, final, join, split
from regard.errors import ArgumentError

SYLLABLES = st.integers(ord("가"), ord("힣")).map(chr)


def test_join_inverts_split_for_every_syllable():
    assert all(join(*split(chr(code))) == chr(code) for code in range(ord("가"), ord("힣") + 1))


@given(
    word=st.text(SYLLABLES, min_size=1, max_size=4), consonant=st.sampled_from(["", "ㄴ", "ㄹ", "ㅂ", "ㅆ"])
)
def test_close_changes_only_the_last_final_consonant(word: str, consonant: str):
    closed = close(word, consonant)
    assert final(closed) == consonant
    assert closed[:-1] == word[:-1] and split(closed[-1])[:2] == split(word[-1])[:2]


@pytest.mark.parametrize("text", ["", "ㄱ", "a", "가나", "!"])
def test_splitting_other_text_raises(text: str):
    with pytest.raises(ArgumentError, match="Hangul"):
        split(text)
