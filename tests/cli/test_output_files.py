"""An output file of a command must not be one of its input files: the command fails, and the file is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRST, SECOND = "in.txt", "second.txt"


@pytest.mark.parametrize(
    "words",
    [
        ("translate", "RUN", FIRST, "--output", FIRST),
        ("translate", "RUN", SECOND, FIRST, "--output", f"./{FIRST}"),
        ("translate", "RUN", FIRST, "--page", "link.html"),
        ("translate", "RUN", FIRST, "--alignments", FIRST),
        ("align", "RUN", "--source", FIRST, "--target", SECOND, "--output", SECOND),
        (
            "align",
            "RUN",
            "--source",
            SECOND,
            "--target",
            SECOND,
            "--gold-alignments",
            FIRST,
            "--output",
            FIRST,
        ),
        ("score", "RUN", "--tsv", FIRST, "--output", FIRST),
        ("score", "RUN", FIRST, "--output", FIRST),
        ("evaluate", "RUN", SECOND, FIRST, "--output", FIRST),
        ("evaluate", "RUN", "--test-file", FIRST, "--page", "link.html"),
        ("classify", "RUN", FIRST, "--output", FIRST),
        ("generate", "RUN", "--prompt-file", FIRST, "--output", FIRST),
        ("ask", "RUN", FIRST, "--output", FIRST),
        ("ask", "RUN", "--story", FIRST, "--output", FIRST),
        ("caption", "RUN", FIRST, "--coco", FIRST),
        ("caption", "RUN", "folder", "--coco", "folder/image.png"),
        ("solve", "RUN", FIRST, "--output", FIRST),
        ("view", "RUN", "--story", FIRST, "--output", FIRST),
        ("data", "split", "--tsv", FIRST, "--output", ".", "--names", "txt,b", "--overwrite"),
    ],
    ids=" ".join,
)
def test_an_input_file_is_not_overwritten(command, tmp_path: Path, monkeypatch, words: tuple[str, ...]):
    monkeypatch.chdir(tmp_path)
    Path(FIRST).write_text("one\n")
    Path(SECOND).write_text("two\n")
    os.link(FIRST, "link.html")
    os.symlink(FIRST, "train.txt")
    Path("folder").mkdir()
    os.link(FIRST, "folder/image.png")
    before = sorted(tmp_path.iterdir())
    said = command(*words)
    assert said.status == 2 and "overwrite" in said.err, said.err
    assert sorted(tmp_path.iterdir()) == before and Path(FIRST).read_text() == "one\n"


def test_two_outputs_are_two_files(command, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = command("translate", "RUN", "--text", "a", "--output", "x", "--alignments", "./x")
    assert said.status == 2 and "--output" in said.err and "--alignments" in said.err


def test_the_incomplete_output_is_not_an_input(command, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt.part").write_text("one\n")
    said = command("translate", "RUN", "a.txt.part", "--output", "a.txt")
    assert said.status == 2 and "a.txt.part" in said.err and "overwrite" in said.err


def test_standard_input_is_not_overwritten(tmp_path: Path):
    path = tmp_path / FIRST
    path.write_text("one\n")
    words = [sys.executable, "-m", "regard", "translate", "RUN", "--output", str(path)]
    with open(path) as file:
        done = subprocess.run(words, stdin=file, capture_output=True, text=True)
    assert done.returncode == 2 and "input" in done.stderr and path.read_text() == "one\n"


def test_a_text_is_not_a_file(command, trained: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").write_text("earlier\n")
    said = command("translate", trained, "--text", "out", "--output", "out")
    assert said.status == 0 and Path("out").read_text() != "earlier\n"
