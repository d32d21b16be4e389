"""Signal handlers do not wait for a full pipe, and commands run without standard output or standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from regard.files import standard_streams
from regard.files.standard_streams import drop_unread_output, write_at_once
from regard.training.interrupts import interruptible
from tests.reading import PACKAGE, import_path
from tests.reliability.test_unread_pipes import fill

LONGEST = 5.0
"""Seconds after which a blocked test reads the pipe, so that it fails instead of waiting forever."""


@pytest.fixture
def unread(monkeypatch) -> Iterator[tuple[int, int]]:
    """A pipe that takes the place of standard error: its file descriptors for reading and writing."""
    reader, writer = os.pipe()
    monkeypatch.setattr(standard_streams, "OUTPUTS", (writer,))
    rescue = threading.Timer(LONGEST, lambda: os.set_blocking(writer, False))
    rescue.start()
    yield reader, writer
    rescue.cancel()
    os.close(reader)
    os.close(writer)


def test_output_is_written_while_the_pipe_has_room(unread):
    reader, _ = unread
    write_at_once("stopping")
    drop_unread_output()
    write_at_once("again")
    assert os.read(reader, 100) == b"stopping\nagain\n"


def test_output_of_a_full_pipe_is_dropped(unread):
    _, writer = unread
    fill(writer)
    write_at_once("stopping")
    assert os.path.samestat(os.fstat(writer), os.stat(os.devnull))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_write_to_a_full_pipe(unread, number: signal.Signals):
    _, writer = unread
    fill(writer)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    with interruptible() as interruption:
        timer.start()
        assert os.write(writer, b"x" * 10_000) == 10_000
    assert interruption


@pytest.mark.parametrize(("closed", "status"), [("1", 1), ("2", 0), ("1,2", 1)])
def test_command_without_standard_streams(closed: str, status: int):
    """A closed standard output is an error only if something is printed to it."""
    code = f"import os, sys; [os.close(each) for each in ({closed},)]; os.execv(sys.executable, sys.argv[1:])"
    ran = subprocess.run(
        [sys.executable, "-c", code, sys.executable, "-m", "regard", "--version"],
        env={**os.environ, "PYTHONPATH": import_path(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == status, ran.stderr
    assert ["output" in line for line in ran.stderr.splitlines()] == ([True] if closed == "1" else [])
