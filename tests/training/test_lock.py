"""The lock: one training a folder, let go of by the end of its process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import DataError
from regard.training.lock import locked
from tests.reading import ROOT

HOLD = """
import sys, time
from pathlib import Path
from regard.training.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_training_is_told_who_the_first_is(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            says = rf"{tmp_path.name}: a training is under way.*process {holder.pid}"
            with pytest.raises(DataError, match=says), locked(tmp_path):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()}\n"


def test_it_is_free_again_after_an_error(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        assert (tmp_path / ".lock").exists()
