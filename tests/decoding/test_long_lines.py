"""Long lines are split at sentence ends or between words, and no token is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.input_checks import Part, divided, sentences, truncated
from regard.decoding.word_alignment import units_of
from tests.decoding.toys import Spaced
from tests.facts import mentions


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("안녕하세요. 반갑습니다! 누구세요?", ["안녕하세요.", "반갑습니다!", "누구세요?"]),
        ("今日は。明日は？「はい。」そう", ["今日は。", "明日は？", "「はい。」", "そう"]),
        ("It cost 3.50 at regard.example today.", ["It cost 3.50 at regard.example today."]),
        ("Dr. Kim met Mrs. J. Lee. They left.", ["Dr. Kim met Mrs. J. Lee.", "They left."]),
        ('He said "no." Then... he left?! Yes.', ['He said "no."', "Then...", "he left?!", "Yes."]),
        ("...", ["..."]),
        (" . ", ["."]),
        ("", []),
        (" \t ", []),
    ],
)
def test_sentences(line: str, expected: list[str]):
    assert sentences(line) == expected


@given(st.text(alphabet="ab .!?。\"'”)\n\x00", max_size=60))
def test_sentence_splitting_loses_no_letter(line: str):
    assert "".join("".join(sentences(line)).split()) == "".join(line.split())


def test_splitting_many_punctuation_marks_takes_linear_time():
    assert sentences("." * 1_000_000) == ["." * 1_000_000]


@given(
    st.lists(st.text(alphabet="abc.", min_size=1, max_size=9), min_size=1, max_size=40), st.integers(1, 12)
)
def test_parts_contain_every_token_and_fit_the_limit(words: list[str], room: int):
    line, tokenizer = " ".join(words), Spaced(size=400)
    parts, note = divided(line, tokenizer, room)
    assert all(1 <= len(part.tokens) <= room and len(part.tokens) == len(part.words) for part in parts)
    assert [token for part in parts for token in part.tokens] == tokenizer.encode(line)
    numbers = [word for part in parts for word in part.words]
    assert numbers == tokenizer.words(tokenizer.encode(line))
    assert mentions(note, "split", len(parts))
    # A word is in one part, unless it does not fit in any.
    for word in set(numbers):
        tokens = numbers.count(word)
        holding = sum(word in part.words for part in parts)
        assert holding == 1 or tokens > room or holding <= 1 + -(-tokens // room)


def test_notes_say_how_a_line_was_split_or_truncated():
    tokenizer = Spaced(size=400, cut=9)
    assert divided("a b. c d. e f.", tokenizer, 3)[1].startswith("split into 3 ")
    assert divided("a b. c d e f g h.", tokenizer, 3)[1].endswith("more than 3 tokens")
    units = units_of(tokenizer)
    part, note = truncated([4, 5, 6, 7], units, 3)
    assert part.tokens == (4, 5, 6) and mentions(note, "3 of 4")
    assert truncated([4, 5, 6], units, 3) == (Part((4, 5, 6)), "")
