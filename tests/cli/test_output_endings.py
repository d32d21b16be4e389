"""--output of the commands that write text: an error for pictures and pages that the command cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command_name", "file", "facts"),
    [
        ("ask", "h.html", ("--page", "h.html")),
        ("ask", "h.gif", (".png, .svg, .pdf",)),
        ("caption", "c.HTM", ("--page", "c.html")),
        ("caption", "x.jpg", (".png, .svg, .pdf, .gif",)),
        ("solve", "heads.html", ("--page", "heads.html")),
        ("translate", "t.html", ("--page", "t.html")),
        ("generate", "g.html", ("--page", "g.html")),
        ("align", "a.svg", ("regard view", "a.txt")),
        ("classify", "c.png", ("regard view", "c.txt")),
        ("classify", "c.html", ("c.txt",)),
        ("score", "s.pdf", ("s.txt",)),
        ("score", "s.xlsx", ("Excel", "s.txt")),
        ("translate", "t.xlsx", ("Excel", "t.txt")),
        ("translate", "t.DOCX", ("t.txt",)),
        ("evaluate", "e.html", ("--page", "e.html")),
    ],
)
def test_other_kinds_of_files_are_refused(
    command, trained: Path, tmp_path: Path, monkeypatch, command_name: str, file: str, facts: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    inputs = ("image.png",) if command_name == "caption" else ()
    said = command(command_name, trained, *inputs, "--output", file)
    assert said.status == 2 and not said.out and not list(tmp_path.iterdir())
    assert "--output" in said.err and all(fact in said.err for fact in (file, *facts)), said.err
    assert ("--page" in said.err) == ("--page" in facts)
