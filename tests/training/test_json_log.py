"""The file of JSON lines: whole after a kill, cut back for a resume, no danger to a run on a full disk."""

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

from regard.training.logs import json_log as module
from regard.training.logs.json_log import Journal, strict


class Disk:
    """A disk that takes `room` more bytes, cuts off what is beyond, and then says that it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.room: int | None = None
        monkeypatch.setattr(module, "open", self.open, raising=False)

    def open(self, *given: Any, **named: Any) -> Any:
        disk, file = self, builtins.open(*given, **named)  # noqa: SIM115

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
def complaints() -> list[str]:
    return []


@pytest.fixture
def journal(tmp_path: Path, complaints: list[str]) -> Journal:
    return Journal(tmp_path / "log.jsonl", complaints.append)


def numbers(journal: Journal) -> list[int]:
    assert journal.path is not None
    return [json.loads(line)["n"] for line in journal.path.read_text().splitlines()]


def test_what_was_there_is_added_to(journal: Journal, tmp_path: Path):
    journal.write({"n": 1})
    Journal(tmp_path / "log.jsonl", journal.complain).write({"n": 2})
    assert numbers(journal) == [1, 2] and journal.position() == len('{"n": 1}\n{"n": 2}\n')


@pytest.mark.parametrize("torn", [b"{", b'{"n": 7', b'{"n": 7}', b"x" * 200_000])
def test_a_line_that_a_kill_left_is_cut_off(journal: Journal, complaints: list[str], torn: bytes):
    assert journal.path is not None
    journal.path.write_bytes(b'{"n": 1}\n' + torn)
    journal.write({"n": 2})
    assert numbers(journal) == [1, 2] and complaints == []


@pytest.mark.parametrize("torn", [b"", b'{"n": 3'])
def test_rewinding_cuts_back_to_a_position(journal: Journal, complaints: list[str], torn: bytes):
    journal.write({"n": 1})
    kept = journal.position()
    journal.write({"n": 2})
    assert journal.path is not None
    with journal.path.open("ab") as file:
        file.write(torn)
    journal.rewind(kept)
    assert journal.position() == kept == 9
    journal.write({"n": 5})
    assert numbers(journal) == [1, 5] and complaints == []


def test_a_position_inside_a_line_goes_back_to_its_start(journal: Journal):
    journal.write({"n": 1})
    journal.write({"n": 2})
    journal.rewind(13)
    assert numbers(journal) == [1]


def test_a_file_that_is_too_short_is_told_of(journal: Journal, complaints: list[str]):
    assert journal.path is not None
    journal.path.write_bytes(b'{"n": 1}\n{"n"')
    journal.rewind(1234)
    (complaint,) = complaints
    assert complaint.startswith("log.jsonl has only 13 of the 1,234 bytes")
    assert numbers(journal) == [1]


def test_a_file_that_is_gone_begins_anew(journal: Journal, complaints: list[str]):
    journal.rewind(0)
    assert complaints == [] and journal.position() == 0
    assert journal.path is not None
    journal.path.unlink()
    journal.rewind(7)
    assert len(complaints) == 1 and "0 of the 7 bytes" in complaints[0]


@pytest.mark.parametrize("room", [0, 1, 8, 9, 12])
def test_a_full_disk_is_told_of_once_and_written_when_there_is_room(
    journal: Journal, complaints: list[str], monkeypatch: pytest.MonkeyPatch, room: int
):
    disk = Disk(monkeypatch)
    journal.write({"n": 1})
    disk.room = room
    for n in range(2, 6):
        journal.write({"n": n})
    written = 1 + room // 9
    assert numbers(journal) == list(range(1, written + 1))  # whole lines, all the time
    assert journal.position() == 9 * written
    assert len(complaints) == 1 and "log.jsonl cannot be written: No space left on device" in complaints[0]
    disk.room = None
    journal.write({"n": 6})
    assert numbers(journal) == [1, 2, 3, 4, 5, 6] and len(complaints) == 1


def test_what_waits_for_the_disk_is_bounded(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
):
    disk = Disk(monkeypatch)
    disk.room = 0
    for n in range(module.HELD + 50):
        journal.write({"n": n})
    disk.room = None
    assert journal.position() > 0 and len(complaints) == 1
    assert numbers(journal) == list(range(50, module.HELD + 50))


def test_a_failing_sync_is_told_of(journal: Journal, complaints: list[str], monkeypatch: pytest.MonkeyPatch):
    journal.write({"n": 1})

    def fail(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    journal.write({"n": 2})
    assert journal.position() == 18 and len(complaints) == 1 and "Input/output error" in complaints[0]


def test_a_folder_that_is_not_there_is_told_of(tmp_path: Path, complaints: list[str]):
    journal = Journal(tmp_path / "nowhere" / "log.jsonl", complaints.append)
    journal.write({"n": 1})
    journal.rewind(3)
    assert journal.position() == 0 and len(complaints) == 1
    (tmp_path / "nowhere").mkdir()
    journal.write({"n": 2})
    assert numbers(journal) == [2]


def test_anything_is_said_in_strict_json():
    given = {
        "number": numpy.float32(0.5),
        "none": numpy.float64("nan"),
        "rows": torch.tensor([[1.0, float("inf")]]),
        "path": Path("a") / "b",
        7: (True, None, 2**70),
        "half": "a\ud800b",
        "pair": "\ud83d\ude00",
        "lines": "\u2028\x85\n\0",
    }
    text = json.dumps(strict(given), allow_nan=False)
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
