"""A training process can be stopped while nobody reads its output, even if it waits in a write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.reading import PACKAGE, import_path

COUNT = 30
"""Number of training processes in `make test-all`."""

SECONDS = 60.0
"""Time in which a process must end after the last signal."""

COMMAND = ["-m", "regard", "train", "--built-in", "korean", "--set", "data.pairs=400", "--output", "run"]
COMMAND += ["--set", "model.width=16", "--set", "evaluation.samples=0", "--minutes", "5", "--threads", "1"]
SCRIPT = """
from regard.tasks.translation import train_translation
settings = {"data": {"built_in": "korean", "pairs": 400}, "training": {"minutes": 5}, "model": {"width": 16}}
outcome = train_translation(settings, "run")
raise SystemExit({"Ctrl-C": 130, "SIGTERM": 143}[outcome.interrupted])
"""
STREAMS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "stderr": (COMMAND, ("stderr",)),
    "stdout and stderr": (COMMAND, ("stdout", "stderr")),
    "stdout": (["-c", SCRIPT], ("stdout",)),
}
"""For each unread stream: the arguments of Python, and the streams that are the unread pipe."""


def fill(writer: int) -> None:
    """Fill a pipe, so that the next write to it blocks."""
    os.set_blocking(writer, False)
    try:
        for size in (4096, 1):
            while True:
                try:
                    os.write(writer, b"x" * size)
                except BlockingIOError:
                    break
    finally:
        os.set_blocking(writer, True)


def read_until(reader: int, text: bytes) -> None:
    """Read a pipe until a text has been read, or for at most SECONDS."""
    content, began = b"", time.monotonic()
    while text not in content and time.monotonic() < began + SECONDS:
        content += os.read(reader, 4096)


def stopped(folder: Path, streams: str, number: signal.Signals, twice: bool, chosen: random.Random) -> int:
    """Train with a pipe that is full from a random moment on, send a signal, and return the exit status."""
    arguments, unread = STREAMS[streams]
    reader, writer = os.pipe()
    environment = {**os.environ, "PYTHONPATH": import_path(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    named: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "REGARD_CACHE": str(folder / "cache")},
        # A job that a shell starts in the background ignores SIGINT, and its child processes do too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **named | dict.fromkeys(unread, writer),
    )
    try:
        if chosen.random() < 0.7:
            read_until(reader, b"step ")  # the training has begun
        fill(writer)
        time.sleep(chosen.uniform(0.5, 4.0))
        process.send_signal(number)
        if twice:
            time.sleep(chosen.uniform(0.0, 0.5))
            process.send_signal(number)
        return process.wait(SECONDS)
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(COUNT))
def test_training_with_unread_output_can_be_stopped(tmp_path: Path, case: int):
    """Before the first step, SIGTERM kills the process, and Ctrl-C may interrupt an import."""
    number = (signal.SIGTERM, signal.SIGINT)[case % 2]
    streams = tuple(STREAMS)[case // 2 % 3]
    status = stopped(tmp_path, streams, number, case // 6 % 2 == 1, random.Random(case))
    if not (tmp_path / "run/log.jsonl").exists():
        assert status in (128 + number, -number, 1)
        return
    assert status in (128 + number, -number)
    assert list((tmp_path / "run").glob("step-*")) or status == -number or case // 6 % 2 == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_a_process_that_waits_in_a_write(number: signal.Signals, signals: int):
    """The same without training: the process has only the handler, and prints until it is stopped."""
    code = """
import sys
from regard.training.interrupts import interruptible
with interruptible() as interruption:
    while not interruption or sys.argv[1] == "2":
        print("x" * 1000, file=sys.stderr, flush=True)
raise SystemExit(3)
"""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(signals)],
        env={**os.environ, "PYTHONPATH": import_path(PACKAGE.parent)},
        stderr=writer,
    )
    rescue = threading.Timer(SECONDS, process.kill)
    rescue.start()
    try:
        os.read(reader, 10)
        time.sleep(0.2)  # the pipe is full
        for _ in range(signals):
            process.send_signal(number)
            time.sleep(0.05)
        status = process.wait()
    finally:
        rescue.cancel()
        os.close(reader)
        os.close(writer)
    expected = 3 if signals == 1 else 143 if number == signal.SIGTERM else -signal.SIGINT
    assert status == expected
