"""EncodedText: lines to tokens in both layouts, counts, and errors with file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import encoded_text as module
from regard.data.batch import BOS, EOS, UNK
from regard.data.encoded_text import LAYOUTS, EncodedText, TextCounts, count_text, encode_text
from regard.data.tokenizers import TOKENIZERS, train_tokenizer
from regard.errors import ArgumentError, DataError, UnknownName
from tests.facts import facts, mentions

LINES = ["the cat sat", "", "on  the\tmat ", "   ", "the"]
WORDS = train_tokenizer("word", LINES)


def expected(lines: list[str], layout: str) -> list[int]:
    """The flat tokens of lines, one line after the other."""
    flat = [EOS] if layout == "continuous" else []
    for line in lines:
        if layout == "continuous":
            flat += [*WORDS.encode(line), EOS]
        elif line.split():
            flat += [BOS, *WORDS.encode(line), EOS]
    return flat


@pytest.mark.parametrize("layout", LAYOUTS)
@given(lines=st.lists(st.sampled_from(["the cat", "", "mat x the", " ", "on"]), max_size=9))
def test_flat_has_every_line_with_its_end(layout: str, lines: list[str]):
    lines = [*lines, "the"]
    text = EncodedText.from_lines(lines, WORDS, layout=layout)
    assert text.flat().tolist() == expected(lines, layout)
    kept = [number for number, line in enumerate(lines) if line.split() or layout == "continuous"]
    assert text.numbers.tolist() == kept and len(text) == len(kept)
    begins = len(kept) if layout == "documents" else 1
    assert text.token_count == len(text.flat()) - begins
    assert text.unknown_count == text.flat().tolist().count(UNK)


def test_counts_do_not_depend_on_the_tokenizer():
    counts = TextCounts(lines=3, words=7, characters=11 + 10 + 3)
    for kind in TOKENIZERS:
        text = EncodedText.from_lines(LINES, train_tokenizer(kind, LINES), layout="documents")
        assert text.counts == counts
    assert EncodedText.from_lines(LINES, WORDS, layout="continuous").counts == counts._replace(lines=5)
    assert count_text(LINES) == counts._replace(lines=5) and count_text([]) == TextCounts(0, 0, 0)


def test_counts_are_characters_not_bytes():
    assert count_text(["안녕 é", "e\u0301"]) == TextCounts(2, 3, 5)


def test_chunks_give_the_same_text(monkeypatch: pytest.MonkeyPatch):
    whole = EncodedText.from_lines(LINES * 7, WORDS, layout="continuous")
    monkeypatch.setattr(module, "CHUNK", 4)
    parts = EncodedText.from_lines(iter(LINES * 7), WORDS, layout="continuous")
    assert numpy.array_equal(whole.flat(), parts.flat()) and whole.counts == parts.counts


def test_large_vocabularies_have_wider_tokens():
    large = train_tokenizer("word", [f"w{number}" for number in range(66_000)], size=66_004, sample=70_000)
    text = EncodedText.from_lines(["w65999 w0"], large, layout="documents")
    assert text.flat().dtype == numpy.uint32 and text.flat().tolist() == [
        BOS,
        *large.encode("w65999 w0"),
        EOS,
    ]
    assert EncodedText.from_lines(["the"], WORDS, layout="documents").flat().dtype == numpy.uint16


def test_files_are_read_one_after_the_other_plain_and_gzip(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the cat\nsat", encoding="utf-8")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfon\r\nthe mat\n"))
    text = encode_text([tmp_path / "a.txt", tmp_path / "b.gz"], WORDS, layout="continuous")
    assert text.flat().tolist() == expected(["the cat", "sat", "on", "the mat"], "continuous")
    assert mentions(text.name, tmp_path / "a.txt", "1 more")
    assert len(encode_text(str(tmp_path / "a.txt"), WORDS)) == 2


def test_invalid_utf8_raises_with_file_and_line(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"the cat\nthe \xff mat\n")
    with pytest.raises(DataError, match=facts("a.txt", "line 2", "UTF-8", "byte 5")):
        encode_text(tmp_path / "a.txt", WORDS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("content", ["", "\n", " \n\t\n\x00\n"])
def test_an_empty_text_raises_with_the_file(layout: str, content: str, tmp_path: Path):
    (tmp_path / "empty.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=facts("empty.txt", "text")):
        encode_text(tmp_path / "empty.txt", WORDS, layout=layout)


def test_invalid_arguments_raise(tmp_path: Path):
    with pytest.raises(UnknownName, match="'documents'"):
        EncodedText.from_lines(LINES, WORDS, layout="document")
    with pytest.raises(ArgumentError, match=facts("lines", "str")):
        EncodedText.from_lines("the cat", WORDS, layout="documents")
    with pytest.raises(ArgumentError, match=facts("files", "empty")):
        encode_text([], WORDS)
    with pytest.raises(DataError, match=facts("none.txt")):
        encode_text(tmp_path / "none.txt", WORDS)


def test_repr_has_the_size():
    text = EncodedText.from_lines(LINES, WORDS, layout="continuous")
    assert mentions(repr(text), "EncodedText", "continuous", "5 lines", "12 tokens", "0 unknown")
