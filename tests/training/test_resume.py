"""A run that is killed at any moment and resumed ends with the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import seed
from tests.reading import ROOT

PROCESSES = (1, 2)
PARTS, KILLS = 5, 100
"""In `make test-all`: tests that run in parallel for each number of processes, and kills in each of them."""


def assert_killed_runs_have_the_same_bits(
    folder: Path, kills: int, *processes: int, device: str = "cpu", offset: int = 0, model: str = ""
) -> None:
    """Kill training `kills` times with each number of processes.

    Every resumed run must end with the bits of the uninterrupted one.
    """
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    environment |= {"REGARD_CACHE": str(folder / "cache"), "PYTHONWARNINGS": "ignore"}
    numbers = ",".join(map(str, processes))
    command = [sys.executable, "-m", "tests.training.broken_runs", folder, kills, numbers, seed() + offset]
    command += [device, model] if model else [device]
    ran = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    reports = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == len(processes)
    for number, report in zip(processes, reports, strict=True):
        assert report["different"] == [], f"{number} processes"
        assert report["compared"] > 0 and report["killed"] == kills, f"{number} processes"


def test_killed_run_ends_with_the_same_bits(tmp_path: Path):
    assert_killed_runs_have_the_same_bits(tmp_path, 5, *PROCESSES)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["transformer", pytest.param("bahdanau", marks=pytest.mark.slow)])
def test_killed_run_with_cuda_graphs_ends_with_the_same_bits(tmp_path: Path, model: str):
    assert_killed_runs_have_the_same_bits(tmp_path, 2, 1, device="cuda", model=model)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("processes", PROCESSES)
def test_run_killed_a_thousand_times_ends_with_the_same_bits(tmp_path: Path, processes: int, part: int):
    assert_killed_runs_have_the_same_bits(tmp_path, KILLS, processes, offset=part)
