"""The JSON lines log: truncated lines after a kill, rewinding for a resume, and full disks."""

from __future__ import annotations

import builtins
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from regard.files.untrusted import strict
from regard.training.logs import log as module
from regard.training.logs.log import Journal


class Disk:
    """A fake disk with `room` bytes left: a longer write is truncated, the next raises ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.room: int | None = None
        monkeypatch.setattr(module, "open", self.open, raising=False)

    def open(self, *arguments: Any, **options: Any) -> Any:
        disk, file = self, builtins.open(*arguments, **options)  # noqa: SIM115

        class File:
            def __enter__(self) -> File:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, data: bytes) -> int:
                if disk.room is None:
                    return int(file.write(data))
                if not disk.room:
                    raise OSError(errno.ENOSPC, "No space left on device")
                written = file.write(data[: disk.room])
                disk.room -= written
                return int(written)

        return File()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def journal(tmp_path: Path, warnings: list[str]) -> Journal:
    return Journal(tmp_path / "log.jsonl", warnings.append)


def numbers(journal: Journal) -> list[int]:
    assert journal.path is not None
    return [json.loads(line)["n"] for line in journal.path.read_text().splitlines()]


def test_records_are_appended_to_an_existing_file(journal: Journal, tmp_path: Path):
    journal.write({"n": 1})
    Journal(tmp_path / "log.jsonl", journal.complain).write({"n": 2})
    assert numbers(journal) == [1, 2] and journal.position() == len('{"n": 1}\n{"n": 2}\n')


@pytest.mark.parametrize("torn", [b"{", b'{"n": 7', b'{"n": 7}', b"x" * 200_000])
def test_incomplete_last_line_is_removed(journal: Journal, warnings: list[str], torn: bytes):
    assert journal.path is not None
    journal.path.write_bytes(b'{"n": 1}\n' + torn)
    journal.write({"n": 2})
    assert numbers(journal) == [1, 2] and warnings == []


@pytest.mark.parametrize("torn", [b"", b'{"n": 3'])
def test_rewind_truncates_to_a_position(journal: Journal, warnings: list[str], torn: bytes):
    journal.write({"n": 1})
    position = journal.position()
    journal.write({"n": 2})
    assert journal.path is not None
    with journal.path.open("ab") as file:
        file.write(torn)
    journal.rewind(position)
    assert journal.position() == position == 9
    journal.write({"n": 5})
    assert numbers(journal) == [1, 5] and warnings == []


def test_rewind_into_a_line_removes_the_line(journal: Journal):
    journal.write({"n": 1})
    journal.write({"n": 2})
    journal.rewind(13)
    assert numbers(journal) == [1]


def test_rewind_beyond_the_end_warns(journal: Journal, warnings: list[str]):
    assert journal.path is not None
    journal.path.write_bytes(b'{"n": 1}\n{"n"')
    journal.rewind(1234)
    (warning,) = warnings
    assert all(fact in warning for fact in ("log.jsonl", "13", "1,234"))
    assert numbers(journal) == [1]


def test_rewind_of_a_missing_file_warns(journal: Journal, warnings: list[str]):
    journal.rewind(0)
    assert warnings == [] and journal.position() == 0
    assert journal.path is not None
    journal.path.unlink()
    journal.rewind(7)
    assert len(warnings) == 1 and "0 of the 7 " in warnings[0]


@pytest.mark.parametrize("room", [0, 1, 8, 9, 12])
def test_full_disk_warns_once_and_records_are_written_later(
    journal: Journal, warnings: list[str], monkeypatch: pytest.MonkeyPatch, room: int
):
    disk = Disk(monkeypatch)
    journal.write({"n": 1})
    disk.room = room
    for n in range(2, 6):
        journal.write({"n": n})
    written = 1 + room // 9
    assert numbers(journal) == list(range(1, written + 1))  # only complete lines
    assert journal.position() == 9 * written
    assert len(warnings) == 1 and "log.jsonl" in warnings[0] and "No space left on device" in warnings[0]
    disk.room = None
    journal.write({"n": 6})
    assert numbers(journal) == [1, 2, 3, 4, 5, 6] and len(warnings) == 1


def test_number_of_unwritten_records_is_bounded(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
):
    disk = Disk(monkeypatch)
    disk.room = 0
    for n in range(module.HELD + 50):
        journal.write({"n": n})
    disk.room = None
    assert journal.position() > 0 and len(warnings) == 1
    assert numbers(journal) == list(range(50, module.HELD + 50))


def test_failing_fsync_warns(journal: Journal, warnings: list[str], monkeypatch: pytest.MonkeyPatch):
    journal.write({"n": 1})

    def fail(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    journal.write({"n": 2})
    assert journal.position() == 18 and len(warnings) == 1 and "Input/output error" in warnings[0]


def test_missing_folder_warns(tmp_path: Path, warnings: list[str]):
    journal = Journal(tmp_path / "nowhere" / "log.jsonl", warnings.append)
    journal.write({"n": 1})
    journal.rewind(3)
    assert journal.position() == 0 and len(warnings) == 1
    (tmp_path / "nowhere").mkdir()
    journal.write({"n": 2})
    assert numbers(journal) == [2]


def test_any_value_is_written_as_strict_json():
    values = {
        "number": numpy.float32(0.5),
        "none": numpy.float64("nan"),
        "rows": torch.tensor([[1.0, float("inf")]]),
        "path": Path("a") / "b",
        7: (True, None, 2**70),
        "half": "a\ud800b",
        "pair": "\ud83d\ude00",
        "lines": "\u2028\x85\n\0",
    }
    text = json.dumps(strict(values), allow_nan=False)
    assert len(text.splitlines()) == 1
    assert json.loads(text) == {
        "number": 0.5,
        "none": "NaN",
        "rows": [[1.0, "Infinity"]],
        "path": "a/b",
        "7": [True, None, 2**70],
        "half": "a\ufffdb",
        "pair": "😀",
        "lines": "\u2028\x85\n\0",
    }
