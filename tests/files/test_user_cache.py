"""The cache folder, also where the home folder cannot be written."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from regard.errors import RegardWarning
from regard.files import user_cache
from regard.files.user_cache import cache_folder


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path: Path):
    for name in ("REGARD_CACHE", "XDG_CACHE_HOME", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(user_cache.tempfile, "tempdir", None)
    user_cache._temporary_folder.cache_clear()
    yield
    user_cache._temporary_folder.cache_clear()


def test_variables_name_the_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/regard"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a/regard"
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b"


@pytest.mark.parametrize("reason", ["not a folder", "read-only", "no home"])
def test_temporary_folder_is_used_if_the_home_folder_cannot_be_written(monkeypatch, tmp_path: Path, reason):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if reason == "not a folder":
        (tmp_path / "home").touch()
    elif reason == "read-only":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.warns(RegardWarning, match="REGARD_CACHE"):
        folder = cache_folder()
    assert folder.is_dir() and folder.parent == tmp_path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_folder() == folder
