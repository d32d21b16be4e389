"""`regard cache`: what is shown, and what is deleted."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import pytest

from regard.data import encode_pairs
from regard.data.tokenizers import train_tokenizers
from regard.files import user_cache

PAIRS = [("ein Haus", "a house"), ("ein Hut", "a hat")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with encoded pairs, converted weights, temporary files, and files of other programs."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("REGARD_CACHE", str(folder))
    encode_pairs(PAIRS, *train_tokenizers(PAIRS, "word"), folder)
    (folder / "efficientnet-lite0-0a1b2c3d-1.safetensors").write_bytes(bytes(3 * 2**20))
    for name, age in (("old", user_cache.LEFT_OVER + 60), ("new", 0)):
        path = folder / f".{'0' * 32}.safetensors.{name.encode().hex()}00.part"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    (folder / "notes.txt").write_text("from the user")
    (folder / ("a" * 32)).mkdir()
    (folder / ("a" * 32) / "photo.jpg").write_bytes(b"from the user")
    (folder / ("b" * 32)).symlink_to(tmp_path, target_is_directory=True)
    return folder


def test_cache_is_shown_with_sizes(command, folder):
    result = command("cache")
    assert (result.status, result.err) == (0, "") and str(folder) in result.out.replace("\n", "")
    rows = {
        " ".join(words[:-3]): words[-3:] for words in map(str.split, result.lines) if words[-1:] == ["MiB"]
    }
    assert rows["weights of image encoders"] == ["1", "3.0", "MiB"]
    assert [line.split()[3] for line in result.lines if "pairs" in line] == ["1"]
    assert rows["total"][0] == "4"


def test_clear_deletes_only_what_regard_wrote(command, folder, tmp_path):
    refused = command("cache", "clear")
    assert refused.status == 2 and "--yes" in refused.err  # standard input is not a terminal
    before = {path.name for path in folder.iterdir()}
    assert len(before) == 7
    assert command("cache", "clear", "--yes").status == 0
    left = {path.name for path in folder.iterdir()}
    in_use = f".{'0' * 32}.safetensors.{b'new'.hex()}00.part"
    assert left == {in_use, "notes.txt", "a" * 32, "b" * 32}
    assert (folder / ("a" * 32) / "photo.jpg").is_file() and tmp_path.is_dir()
    assert len(encode_pairs(PAIRS, *train_tokenizers(PAIRS, "word"), folder)) == 2


def test_clear_asks_on_a_terminal(command, folder, monkeypatch):
    module = importlib.import_module("regard.cli.cache")
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    before = set(folder.iterdir())
    result = command("cache", "clear", stdin=b"n\n")
    assert result.status == 130 and "Delete" in result.out and set(folder.iterdir()) == before
    assert command("cache", "clear", stdin=b"y\n").status == 0 and set(folder.iterdir()) < before


def test_missing_cache_folder_is_no_error(command, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "nothing"))
    for words in (("cache",), ("cache", "clear")):
        result = command(*words)
        assert result.status == 0 and "nothing" in result.out
