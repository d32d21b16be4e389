"""Names of files that are not UTF-8, too long, or hold control characters work, or the error names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import command, trained  # noqa: F401

NAMES = {
    "not UTF-8": os.fsdecode(b"d\xff\xfe"),
    "control characters": "a\nb\x1b[31m\tc",
    "as long as can be": "x" * 240,
}
TOO_LONG = {"a long name": "x" * 300, "a long path": "/".join(["y" * 200] * 25)}


@pytest.fixture(params=NAMES, ids=lambda name: name.replace(" ", "-"))
def folder(request, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    made = Path(NAMES[request.param])
    made.mkdir()
    for name in ("a.ko", "a.en"):
        (made / name).write_text("".join(f"line {number}\n" for number in range(60)))
    return made


def test_files_with_odd_names_are_read_and_written(folder: Path, command, trained):  # noqa: F811
    sides = ("--source", folder / "a.ko", "--target", folder / "a.en")
    assert command("data", "check", *sides).status == 0
    for arguments in (
        ("data", "split", *sides, "--held-out", 5, "--out", folder / "split"),
        ("data", "korean", "--pairs", 3, "--out", folder / "korean"),
        ("translate", trained, folder / "a.ko", "--greedy", "--max-length", 3, "--out", folder / "out"),
        ("view", trained, "나는", "--greedy", "--out", folder / "x.seen"),
        ("view", folder / "x.seen", "--out", folder / "x.html"),
        ("average", trained, "--last", 1, "--out", folder / "mean"),
    ):
        said = command(*arguments)
        assert said.status == 0, said.err
        assert "\x1b[31m" not in said.out + said.err
    assert (folder / "out").read_bytes().count(b"\n") == 60 and (folder / "x.html").is_file()


def test_training_on_files_with_odd_names_works_or_names_them(folder: Path, command):  # noqa: F811
    sides = ("--source", folder / "a.ko", "--target", folder / "a.en", "--set", "model.width=8")
    said = command("train", *sides, "--steps", 1, "--out", folder / "run")
    if str(folder).isascii():
        assert said.status == 0, said.err
        assert command("show", folder / "run").status == 0
    else:
        assert said.status == 2 and "data.source" in said.err and "UTF-8" in said.err
        assert not (folder / "run").exists()


@pytest.mark.parametrize("name", TOO_LONG)
def test_names_that_are_too_long_are_named(name: str, tmp_path: Path, monkeypatch, command, trained):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    long = TOO_LONG[name]
    for arguments in (
        ("data", "check", "--source", long, "--target", long),
        ("data", "korean", "--pairs", 3, "--out", long),
        ("train", "--built-in", "korean", "--out", long),
        ("train", "--recipe", long, "--out", "new"),
        ("translate", long, "--text", "a"),
        ("translate", trained, long),
        ("translate", trained, "--text", "a", "--out", long),
        ("translate", trained, "--text", "a", "--page", f"{long}.html"),
        ("view", trained, "a", "--out", f"{long}.svg"),
        ("view", long),
        ("show", long),
        ("average", trained, "--last", 1, "--out", long),
        ("evaluate", trained, "--source", long, "--target", long),
    ):
        said = command(*arguments)
        assert said.status == 2 and long[:150] in said.err and "REGARD_TRACEBACK" not in said.err, said.err
