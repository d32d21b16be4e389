"""Generated hostile lines: as many lines out as in, each printable, none disturbed by its neighbours."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest

from regard.data.text_encoding import likely_encoding
from tests.conftest import seed

COUNT = 100_000
"""Lines in `make test-all`."""
SAMPLE = 600
"""Lines in `make test`."""

PARTS = (
    *(b"\x00", b"\x07", b"\x08", b"\x0b", b"\x0c", b"\r", b"\x1b[2J", b"\x1b]0;title\x07", b"\x7f", b"\x9b"),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80", b"\xef\xbb\xbf"),
    *map(
        str.encode,
        ("\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200d", "\ufeff", "\ufffe", "\U0010ffff"),
    ),
    *map(
        str.encode,
        ("</s>", "<unk>", "<pad>", "<s>", "\u2581", "<0x0A>", "[bold]", "[/]", "%s", "{0}", "$(id)"),
    ),
    *map(str.encode, ("<script>alert(1)</script>", '"', "'", "\\", "\\n", "&lt;", "|||", "\t", " ", "   ")),
    *map(
        str.encode,
        ("나는", "학교에", "간다", ".", "word", "é\u0301\u0301", "👩‍👩‍👧", "שלום", "9" * 400, "한" * 90),
    ),
)


def hostile_lines(count: int) -> list[bytes]:
    """Random concatenations of parts, every hundredth of random bytes; none holds a line feed."""
    draw = random.Random(seed())
    lines = []
    for number in range(count):
        if number % 100:
            line = b"".join(draw.choices(PARTS, k=draw.randint(0, 8)))
        else:
            line = draw.randbytes(draw.randint(0, 300)).replace(b"\n", b"")
        lines.append(line)
    return lines


def assert_lines_survive(command, run: Path, folder: Path, count: int) -> None:
    """Translate and score `count` hostile lines; some of them also alone."""
    lines = hostile_lines(count)
    source, out, links = folder / "hostile.txt", folder / "out.txt", folder / "links.txt"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    limits = "--max-source-length", 60, "--max-length", 8
    answer = command("translate", run, source, "--output", out, "--alignments", links, *limits)
    assert (answer.status, answer.out) == (0, "")
    assert "\x1b" not in answer.err and "\x07" not in answer.err
    text = out.read_bytes().decode()
    translations = text.split("\n")[:-1]
    assert len(translations) == count == links.read_bytes().count(b"\n")
    assert not [each for each in set(text) - {"\n", "\t"} if unicodedata.category(each) == "Cc"]
    for number in range(0, count, max(1, count // 20)):
        if likely_encoding(lines[number] + b"\n"):  # alone, the line looks like a text in another encoding
            continue
        alone = command("translate", run, *limits, stdin=lines[number] + b"\n")
        assert (alone.status, alone.lines) == (0, [translations[number]])
    score = command("score", run, "--source", source, "--target", source, "--output", folder / "scores.txt")
    assert score.status == 0 and (folder / "scores.txt").read_bytes().count(b"\n") == count


def test_a_sample_of_hostile_lines_is_translated_and_scored(command, trained, tmp_path: Path):
    assert_lines_survive(command, trained, tmp_path, SAMPLE)


@pytest.mark.slow
def test_hostile_lines_are_translated_and_scored(command, trained, tmp_path: Path):
    assert_lines_survive(command, trained, tmp_path, COUNT)
