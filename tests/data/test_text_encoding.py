"""The likely encoding of a text, and UTF-8 text that was decoded with a wrong encoding."""

from __future__ import annotations

import random
import warnings

import pytest

from benchmarks.encoding_sentences import SENTENCES
from benchmarks.encodings import ENCODINGS, cases, is_right
from regard.data import pairs_from_lists, read_pairs
from regard.data.labelled_text import read_labelled
from regard.data.line_io import Lines
from regard.data.pairs import PairStream
from regard.data.read_text import read_lines
from regard.data.text_encoding import check_encoding, find_mojibake, likely_encoding
from regard.errors import DataError, RegardWarning, UnknownName
from tests.facts import facts

WRONG = [
    ("cp949", "latin-1", "Korean"),
    ("cp949", "cp1252", "Korean"),
    ("utf-8", "latin-1", "Korean"),
    ("utf-8", "cp1252", "German"),
    ("utf-8", "cp949", "Korean"),
    ("utf-8", "cp932", "Japanese"),
    ("utf-8", "gb18030", "Chinese"),
    ("gb18030", "latin-1", "Chinese"),
    ("cp1251", "latin-1", "Russian"),
    ("cp949", "utf-8", "Korean"),
]
"""Encoding of a text, the encoding that it is read as, and its language."""


@pytest.mark.parametrize(("language", "encoding"), [(a, b) for a, each in ENCODINGS.items() for b in each])
def test_likely_encoding_decodes_to_the_text(language, encoding):
    for lines in (1, 3, 10):
        for text, data in cases(language, encoding, lines, 5, SENTENCES[language]):
            assert is_right(likely_encoding(data), text, data), text


@pytest.mark.parametrize(
    "text", ["", "abc\n", "안녕하세요.\n", "Grüße\n", "a\0b\n\0\nc\n", "\x1b[2J[bold]\0\n"]
)
def test_utf_8_has_no_other_likely_encoding(text):
    assert likely_encoding(text.encode()) is None


def test_utf_8_with_a_few_damaged_lines_and_random_bytes_have_no_likely_encoding():
    korean = [line.encode() for line in SENTENCES["Korean"]]
    assert likely_encoding(b"\n".join([korean[0][:-1], *korean])) is None
    assert likely_encoding("안녕하세요".encode() + b"\xff") is None
    assert likely_encoding(bytes(range(256)) * 4) is None


@pytest.mark.parametrize(("encoding", "read_as", "language"), WRONG)
def test_mojibake_is_found(encoding, read_as, language):
    sentences = [line for line in SENTENCES[language] if not line.isascii()]
    wrong = [line.encode(encoding, "ignore").decode(read_as, "replace") for line in sentences]
    assert find_mojibake(["Hello.", *wrong]) is not None
    assert find_mojibake(sentences) is None


CHANCE = {
    "one pair": "Â\x80",
    "one word": "heiÃŸe",
    "damaged line": "9 \ufffd\ufffd\ufffd half of a pair",
    "letters": "ûµ×ç",
    "repeated": "\n".join(["Î\x9fÿ"] * 9),
    "damaged lines among others": "\n".join(["안녕하세요.", "Grüße", *["\ufffd\ufffd\ufffd\ufffd"] * 2]),
    "random bytes": random.Random(0).randbytes(200).decode("utf-8", "replace"),
    "random bytes in Latin-1": random.Random(0).randbytes(200).decode("latin-1"),
}
"""Texts with characters of mojibake that are too few to show a wrong encoding."""


@pytest.mark.parametrize("name", CHANCE)
def test_characters_by_chance_are_not_mojibake(name):
    assert find_mojibake(CHANCE[name].split("\n")) is None


def test_training_on_mojibake_warns_with_file_line_and_the_right_text(tmp_path):
    wrong = "안녕하세요.\n고맙습니다.\n".encode("cp949").decode("latin-1")
    (tmp_path / "a.ko").write_text("OK\n" + wrong, encoding="utf-8")
    (tmp_path / "a.en").write_text("OK\nHello.\nThank you.\n", encoding="utf-8")
    with pytest.warns(RegardWarning, match=facts("a.ko", "line 2", "CP949", "안녕하세요")):
        read_pairs(tmp_path / "a.ko", tmp_path / "a.en").inspect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pairs_from_lists(["안녕."], ["Hi."]).inspect().kept == 1


@pytest.mark.parametrize("encoding", ["cp949", "euc-kr", "utf-16", "utf-16-le", "utf-16-be"])
def test_text_in_another_encoding_is_read_if_it_is_named(tmp_path, encoding):
    path = tmp_path / "a.ko"
    path.write_bytes("안녕하세요.\r\n고맙습니다.".encode(encoding))
    with pytest.raises(DataError, match=facts("a.ko", "안녕하세요.", "hint", "encoding=")):
        list(read_lines(path))
    assert list(read_lines(path, encoding)) == ["안녕하세요.", "고맙습니다."]


@pytest.mark.parametrize("encoding", ["utf-16", "UTF16", "utf-32"])
def test_text_without_the_byte_order_mark_of_the_named_encoding_is_an_error(tmp_path, encoding):
    path = tmp_path / "a.ko"
    path.write_bytes("안녕하세요. 고맙습니다.\n".encode("cp949"))
    with pytest.raises(DataError, match=facts("a.ko", " order", "CP949", "encoding=", "cp949")):
        list(read_lines(path, encoding))
    path.write_bytes("안녕하세요. 고맙습니다.\n".encode("utf-16-be"))
    with pytest.raises(DataError, match=facts(" order", "UTF-16", "encoding=", "utf-16-be")):
        list(read_lines(path, encoding))
    path.write_text("Hello.\n")
    with pytest.raises(DataError, match=facts("a.ko", "UTF-8", "ASCII", "encoding=", "iconv")):
        list(read_lines(path, encoding))


@pytest.mark.parametrize("encoding", ["utf8", "UTF-8", "utf-8-sig"])
def test_naming_utf_8_is_like_naming_no_encoding(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("안녕하세요.,Hello.\n고맙습니다.,Thanks.\n".encode("cp949"))
    readers = (
        lambda: list(read_lines(path, encoding)),
        lambda: list(Lines([str(path)], encoding=encoding)),
        lambda: list(PairStream.rows([str(path)], None, encoding=encoding)),
        lambda: read_pairs(tsv=path, encoding=encoding).inspect().check(),
        lambda: read_labelled(path, label=2, text=1, encoding=encoding),
    )
    for read in readers:
        with pytest.raises(DataError, match=facts("a.csv", "line 1", "UTF-8", "CP949")):
            read()


def test_names_of_encodings_in_windows_programs_have_a_hint():
    for name, encoding in (("ANSI", "cp949"), ("unicode", "utf-16")):
        with pytest.raises(UnknownName, match=facts("known", "latin-1", "hint", encoding)):
            check_encoding(name)


def test_bytes_that_are_invalid_in_the_named_encoding_are_an_error(tmp_path):
    path = tmp_path / "a.ko"
    path.write_bytes("안녕.\n".encode("cp949") + b"\xff\xffx\n")
    with pytest.raises(DataError, match=facts("a.ko", "line 2", "cp949")):
        list(read_lines(path, "cp949"))
    with pytest.raises(UnknownName, match=facts("'cp9949'", "cp949")):
        list(read_lines(path, "cp9949"))
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfabc\n")
    assert list(read_lines(tmp_path / "b")) == list(read_lines(tmp_path / "b", "utf-8")) == ["abc"]


def test_cp949_that_looks_like_utf_8_in_one_line_is_recognized():
    lines = ["우리가 그것을 맡겠다. (처리하겠다.)", "우리 아빠는 인플루엔자에 걸려 있어."]
    mojibake = find_mojibake([line.encode("cp949").decode("latin-1") for line in lines])
    assert mojibake is not None and mojibake.encoding == "cp949"
