"""The lock: one training per folder, released when its process ends, valid while the folder is in place."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import DataError
from regard.files.folder_lock import FolderMoved, locked
from tests.reading import ROOT

HOLD = """
import sys, time
from pathlib import Path
from regard.files.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_error_names_the_folder_and_the_process_that_holds_the_lock(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            facts = rf"{tmp_path.name}: .*process {holder.pid}"
            with pytest.raises(DataError, match=facts), locked(tmp_path):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()}\n"


def test_lock_is_released_after_an_error(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_lock_file_is_empty_after_release(tmp_path: Path):
    with locked(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == b""


def test_moved_folder_stays_locked_and_its_new_path_is_known(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    with locked(here) as lock:
        lock.check()
        here.rename(there)
        with pytest.raises(FolderMoved, match=str(there)) as caught:
            lock.check()
        assert caught.value.place == there
        with pytest.raises(DataError, match=str(os.getpid())), locked(there):
            pass
        here.mkdir()
        with locked(here) as another:  # a new folder of the old name is free
            another.check()
            with pytest.raises(FolderMoved) as caught:
                lock.check()
            assert caught.value.place == there
    with locked(there):
        pass


def test_removed_or_replaced_folder_raises(tmp_path: Path):
    here = tmp_path / "here"
    here.mkdir()
    with locked(here) as lock:
        shutil.rmtree(here)
        with pytest.raises(FolderMoved, match=str(here)) as removed:
            lock.check()
        here.mkdir()
        with pytest.raises(FolderMoved, match=str(here)) as replaced:
            lock.check()
    assert removed.value.place is replaced.value.place is None
    assert list(here.iterdir()) == []


def test_deleted_lock_file_is_written_and_locked_again(tmp_path: Path):
    with locked(tmp_path) as lock:
        (tmp_path / ".lock").unlink()
        lock.check()
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()}\n"
        with pytest.raises(DataError), locked(tmp_path):
            pass
        (tmp_path / ".lock").unlink()
        with locked(tmp_path), pytest.raises(DataError, match=str(os.getpid())):
            lock.check()
        lock.check()


def test_disk_without_locks_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("regard.files.folder_lock.lock_descriptor", unsupported)
    with locked(tmp_path) as first, locked(tmp_path) as second:
        first.check()
        second.check()
    assert (tmp_path / ".lock").read_bytes() == b""


def test_link_or_fifo_as_lock_file_raises(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match=r"\.lock"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "run" / ".lock").unlink()
    os.mkfifo(tmp_path / "run" / ".lock")
    with pytest.raises(DataError, match=r"\.lock"), locked(tmp_path / "run"):
        pass
