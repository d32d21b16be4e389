"""File names that are not UTF-8, are too long or have control characters work, or the error names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import command, trained  # noqa: F401

NAMES = {
    "not UTF-8": os.fsdecode(b"d\xff\xfe"),
    "control characters": "a\nb\x1b[31m\tc",
    "maximum length": "x" * 240,
}
TOO_LONG = {"a long name": "x" * 300, "a long path": "/".join(["y" * 200] * 25)}


@pytest.fixture(params=NAMES, ids=lambda name: name.replace(" ", "-"))
def folder(request, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = Path(NAMES[request.param])
    path.mkdir()
    for name in ("a.ko", "a.en"):
        (path / name).write_text("".join(f"line {number}\n" for number in range(60)))
    return path


def test_files_with_unusual_names_are_read_and_written(folder: Path, command, trained):  # noqa: F811
    sides = ("--source", folder / "a.ko", "--target", folder / "a.en")
    assert command("data", "check", *sides).status == 0
    for arguments in (
        ("data", "split", *sides, "--held-out", 5, "--output", folder / "split"),
        ("data", "korean", "--pairs", 3, "--output", folder / "korean"),
        ("translate", trained, folder / "a.ko", "--greedy", "--max-length", 3, "--output", folder / "out"),
        ("view", trained, "나는", "--greedy", "--output", folder / "x.seen"),
        ("view", folder / "x.seen", "--output", folder / "x.html"),
        ("average", trained, "--last", 1, "--output", folder / "mean"),
    ):
        result = command(*arguments)
        assert result.status == 0, result.err
        assert "\x1b[31m" not in result.out + result.err
    assert (folder / "out").read_bytes().count(b"\n") == 60 and (folder / "x.html").is_file()


def test_training_on_files_with_unusual_names_works_or_names_them(folder: Path, command):  # noqa: F811
    sides = ("--source", folder / "a.ko", "--target", folder / "a.en", "--set", "model.width=8")
    result = command("train", *sides, "--steps", 1, "--output", folder / "run")
    if str(folder).isascii():
        assert result.status == 0, result.err
        assert command("show", folder / "run").status == 0
    else:
        assert result.status == 2 and "data.source" in result.err and "UTF-8" in result.err
        assert not (folder / "run").exists()


@pytest.mark.parametrize("name", TOO_LONG)
def test_errors_have_names_that_are_too_long(name: str, tmp_path: Path, monkeypatch, command, trained):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    long = TOO_LONG[name]
    for arguments in (
        ("data", "check", "--source", long, "--target", long),
        ("data", "korean", "--pairs", 3, "--output", long),
        ("train", "--built-in", "korean", "--output", long),
        ("train", "--recipe", long, "--output", "new"),
        ("translate", long, "--text", "a"),
        ("translate", trained, long),
        ("translate", trained, "--text", "a", "--output", long),
        ("translate", trained, "--text", "a", "--page", f"{long}.html"),
        ("view", trained, "a", "--output", f"{long}.svg"),
        ("view", long),
        ("show", long),
        ("average", trained, "--last", 1, "--output", long),
        ("evaluate", trained, "--source", long, "--target", long),
    ):
        result = command(*arguments)
        assert result.status == 2 and long[:150] in result.err and "REGARD_TRACEBACK" not in result.err, (
            result.err
        )
