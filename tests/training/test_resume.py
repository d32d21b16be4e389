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
    folder: Path, kills: int, processes: int, device: str = "cpu", offset: int = 0
) -> None:
    """Kill training `kills` times; every resumed run must end with the bits of the uninterrupted one."""
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    environment |= {"REGARD_CACHE": str(folder / "cache"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.training.broken_runs", folder, kills, processes, seed() + offset]
    command.append(device)
    ran = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads(ran.stdout.splitlines()[-1])
    assert report["different"] == [] and report["compared"] > 0 and report["killed"] == kills


@pytest.mark.parametrize("processes", PROCESSES)
def test_killed_run_ends_with_the_same_bits(tmp_path: Path, processes: int):
    assert_killed_runs_have_the_same_bits(tmp_path, 5, processes)


@pytest.mark.gpu
def test_killed_run_with_cuda_graphs_ends_with_the_same_bits(tmp_path: Path):
    assert_killed_runs_have_the_same_bits(tmp_path, 2, 1, "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("processes", PROCESSES)
def test_run_killed_a_thousand_times_ends_with_the_same_bits(tmp_path: Path, processes: int, part: int):
    assert_killed_runs_have_the_same_bits(tmp_path, KILLS, processes, offset=part)
