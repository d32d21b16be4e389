"""The final consonant of any Hangul syllable can be replaced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regard.data.korean.lexicon import close, final

SYLLABLES = st.integers(ord("가"), ord("힣")).map(chr)


@given(
    word=st.text(SYLLABLES, min_size=1, max_size=4), consonant=st.sampled_from(["", "ㄴ", "ㄹ", "ㅂ", "ㅆ"])
)
def test_close_changes_only_the_last_final_consonant(word: str, consonant: str):
    closed = close(word, consonant)
    assert final(closed) == consonant
    assert close(closed, final(word)) == word
