"""Array files: the same bytes every time, files of earlier versions, and damaged or hostile files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from regard.errors import DataError
from regard.files import array_file
from regard.files.array_file import load_arrays, save_arrays
from tests.reading import ROOT

KIND = "regard.example"
ARRAYS = {
    "weights": numpy.array([[0.5, 0.25, 0.25]], "f4"),
    "keys": numpy.array([2, 0, 1], "i4"),
    "empty": numpy.zeros((0, 3), "f4"),
}


def handwritten(path: Path, header: dict[str, Any], data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def old_header(**entry: Any) -> dict[str, Any]:
    """The header that version 0.1.0 wrote for one array of two numbers; entry: values to replace."""
    metadata = {"format": KIND, "version": "1", "told": json.dumps({"title": "고양이"})}
    return {
        "__metadata__": metadata,
        "weights": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry,
    }


def test_load_returns_what_was_saved(tmp_path: Path):
    arrays = ARRAYS | {"turned": ARRAYS["weights"].T, "wide": numpy.array([1.5], ">f8")}
    save_arrays(tmp_path / "a", KIND, {"title": "\ud800 고양이", "score": None}, arrays)
    metadata, loaded = load_arrays(tmp_path / "a", KIND, "save()")
    assert metadata == {"title": "\ud800 고양이", "score": None}
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert numpy.array_equal(loaded[name], array) and loaded[name].shape == array.shape
    assert {str(array.dtype) for array in loaded.values()} == {"float32", "int32"}


def test_every_process_writes_the_same_bytes_without_torch(tmp_path: Path):
    code = (
        "import sys, numpy\n"
        "from regard.files.array_file import save_arrays\n"
        "arrays = {'b': numpy.ones(2, 'f4'), 'a': numpy.ones(3, 'i4')}\n"
        "save_arrays(sys.argv[1], 'kind', {'title': 'x', 'notes': []}, arrays)\n"
        "assert 'torch' not in sys.modules\n"
    )
    for name in "abc":
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        subprocess.run(command, check=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_files_of_version_0_1_0_load(tmp_path: Path):
    data = numpy.array([0.25, 0.75], "<f4").tobytes()
    metadata, arrays = load_arrays(handwritten(tmp_path / "old", old_header(), data), KIND, "save()")
    assert metadata == {"title": "고양이"}
    assert arrays["weights"].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [1]},
        {"dtype": "BF16", "shape": [4]},
        {"dtype": "F3"},
        {"shape": [10**12]},
        {"shape": [2**62, 4]},
        {"shape": [0, 2**63], "data_offsets": [0, 0]},
        {"shape": [-1, -2]},
        {"data_offsets": [0, 10**9]},
        {"data_offsets": [-8, 0]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0]},
        {"shape": "two"},
    ],
)
def test_hostile_entries_raise_data_error(tmp_path: Path, entry: dict[str, Any]):
    path = handwritten(tmp_path / "a", old_header(**entry), bytes(8))
    with pytest.raises(DataError, match=str(path)):
        load_arrays(path, KIND, "save()")


def test_hostile_metadata_raises_data_error(tmp_path: Path):
    valid = old_header()["__metadata__"]
    for metadata in (
        None,
        [],
        {},
        valid | {"format": "another"},
        valid | {"version": "2"},
        valid | {"told": "[]"},
        valid | {"told": "[" * 100_000},
        valid | {"told": '{"title": 1, "title": 2}'},
        valid | {"told": 3},
    ):
        path = handwritten(tmp_path / "a", old_header() | {"__metadata__": metadata}, bytes(8))
        with pytest.raises(DataError, match=str(path)):
            load_arrays(path, KIND, "save()")


def test_size_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    save_arrays(path, KIND, {"title": "x" * 1000}, ARRAYS)
    monkeypatch.setitem(array_file.LIMITS, "seen header", 1000)
    with pytest.raises(DataError, match=str(path)):
        load_arrays(path, KIND, "save()")
    monkeypatch.setitem(array_file.LIMITS, "seen", 1000)
    with pytest.raises(DataError, match="1,000"):
        load_arrays(path, KIND, "save()")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_arrays(tmp_path / "a", KIND, {"title": "old"}, ARRAYS)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        with pytest.raises(DataError, match=os.strerror(errno.ENOSPC)):
            save_arrays(tmp_path / "a", KIND, {"title": "new"}, ARRAYS)
    assert load_arrays(tmp_path / "a", KIND, "save()")[0] == {"title": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
