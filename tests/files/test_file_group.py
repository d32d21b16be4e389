"""written_together(): either all files are written, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import DataError
from regard.files.atomic_io import written_together


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() if path.is_file() else "folder" for path in folder.iterdir()}


def write(folder: Path, *names: str) -> None:
    with written_together([folder / name for name in names]) as files:
        for file in files:
            file.write("new\n")


@pytest.mark.parametrize("before", [{}, {"a": "old"}, {"a": "old", "b": "older"}])
def test_all_files_are_written(tmp_path: Path, before: dict[str, str]):
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    write(tmp_path, "a", "b", "inner/c")
    assert content(tmp_path) == {"a": "new\n", "b": "new\n", "inner": "folder"}
    assert content(tmp_path / "inner") == {"c": "new\n"}


@pytest.mark.parametrize("before", [{}, {"a": "old"}, {"a": "old", "b": "older"}])
def test_a_failed_rename_leaves_every_file_as_it_was(tmp_path: Path, before: dict[str, str]):
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "c").mkdir()  # a file cannot replace a folder
    with pytest.raises(DataError, match="c: "):
        write(tmp_path, "a", "b", "c")
    assert content(tmp_path) == {**before, "c": "folder"}


def test_an_error_in_the_block_leaves_every_file_as_it_was(tmp_path: Path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError), written_together([tmp_path / "a", tmp_path / "b"]) as files:
        files[0].write("new")
        raise KeyError
    assert content(tmp_path) == {"a": "old"}
