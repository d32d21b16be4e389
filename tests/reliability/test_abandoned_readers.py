"""Readers of data that are abandoned, e.g. after an error, and collected at any moment: nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import seed
from tests.reading import PACKAGE, ROOT, import_path

KINDS = ("pairs", "encoding")

READERS = 200
"""Number of readers in `make test-all`."""


def assert_nothing_hangs(folder: Path, count: int) -> None:
    """Abandon `count` readers in a process: the first of each kind inside the locks, the others at random."""
    command = [sys.executable, "-m", "tests.reliability.abandoned_readers", folder, str(seed()), str(count)]
    environment = {
        **os.environ,
        "PYTHONPATH": import_path(ROOT, PACKAGE.parent),
        "FORCE_COLOR": "1",  # progress bars are shown as in a terminal
    }
    result = subprocess.run(
        [*command, *KINDS], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.split() == [str(number + 1) for number in range(count)]


def test_abandoned_readers_are_collected_inside_locks(tmp_path: Path):
    assert_nothing_hangs(tmp_path, 2 * len(KINDS))


@pytest.mark.slow
def test_many_readers_are_abandoned_at_random(tmp_path: Path):
    assert_nothing_hangs(tmp_path, READERS)
