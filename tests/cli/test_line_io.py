"""Reading and writing lines: line ends, invalid UTF-8, and UTF-8 output in every locale."""

from __future__ import annotations

import gzip
import io
import sys

import pytest

from regard.data.line_io import Lines, Notes, given_lines, writing
from regard.errors import ArgumentError, DataError
from tests.facts import mentions


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\r\nb\rc\r\n", ["a", "b\rc"]),
        ("a\u2028b\x0cc\x85d\x1ce".encode(), ["a\u2028b\x0cc\x85d\x1ce"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\x00\n\xff\n", ["\x00", "\ufffd"]),
    ],
)
def test_lines_end_at_newline_only(content, expected, tmp_path):
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    for place in (content, str(tmp_path / "plain"), str(tmp_path / "packed")):
        lines = Lines([place])
        assert list(lines) == expected
        assert (lines.read, lines.repaired) == (len(expected), int("\ufffd" in expected))


def test_files_that_are_not_utf_8_text_raise(tmp_path):
    (tmp_path / "wide").write_bytes("안녕".encode("utf-16"))
    (tmp_path / "cut").write_bytes(gzip.compress(b"a\n" * 10_000)[:-20])
    for name, told in (("wide", "UTF-16"), ("cut", "truncated or damaged"), ("none", "no such file")):
        with pytest.raises(DataError, match=told):
            list(Lines([str(tmp_path / name)]))
    with pytest.raises(DataError, match="folder"):
        list(Lines([str(tmp_path)]))


def test_output_is_utf_8_in_every_locale(monkeypatch, tmp_path):
    bytes_ = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_, encoding="ascii"))
    with writing(None) as write:
        write("고양이 \ud800")
    with writing(tmp_path / "out") as write:
        write("고양이 \ud800")
    assert bytes_.getvalue() == (tmp_path / "out").read_bytes() == "고양이 ?\n".encode()


def test_output_through_symlinks_and_to_devices(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with writing(tmp_path / "link") as write:
        write("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new\n"
    (tmp_path / "nothing").symlink_to("/dev/null")
    with writing(tmp_path / "nothing") as write:
        write("gone")
    assert not (tmp_path / "nothing").is_file() and len(list(tmp_path.iterdir())) == 3


def test_errors_of_other_files_do_not_name_the_output(tmp_path):
    with pytest.raises(OSError, match="elsewhere"), writing(tmp_path / "out"):
        raise OSError("elsewhere")
    assert list(tmp_path.iterdir()) == []


def test_keyboard_input_is_detected(monkeypatch):
    class Keyboard(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard(io.BufferedReader(io.BytesIO(b"a\n"))))
    assert Lines(["-"]).keyboard and not Lines(["file"]).keyboard
    assert list(Lines(["-"])) == ["a"]


def test_notes_of_one_kind_are_printed_once():
    notes = Notes()
    for number in range(1, 4):
        notes.add(number, [f"cut at {number} of 1,000 tokens"])
    notes.add(9, ["nothing in it could be read"])
    first, second = notes.lines()
    assert mentions(first, "line 1", "1 of 1,000", "2 more") and mentions(second, "line 9")


@pytest.mark.parametrize(("file", "repeated"), [("bad film", True), ("there.txt", False)])
def test_texts_and_files_are_refused_and_a_second_text_needs_the_option_again(tmp_path, file, repeated):
    (tmp_path / "there.txt").write_text("a\n")
    path = file if repeated else str(tmp_path / file)
    with pytest.raises(ArgumentError) as refused:
        given_lines([path], ["good film"])
    assert refused.value.message.call == "--text"
    assert ("--text A --text B" in refused.value.message.hint) == repeated
