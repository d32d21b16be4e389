"""Two processes train like one process with batches twice as large, and log everything once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.training.distributed import Processes
from tests.reading import ROOT, import_path
from tests.training.two_processes import losses


def train(folder: Path, tokens: int, processes: int) -> list[tuple[float, float, int]]:
    """Train with this many processes, started by torchrun as users do, and return the losses."""
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT / "src", ROOT), "OMP_NUM_THREADS": "1"}
    environment["REGARD_CACHE"] = str(folder / "cache")
    script = ["-m", "tests.training.two_processes", str(folder), str(tokens)]
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    command = [sys.executable, *(start if processes > 1 else []), *script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return losses(folder)


def test_two_processes_have_the_losses_of_one(tmp_path: Path):
    one, two = train(tmp_path / "one", 400, 1), train(tmp_path / "two", 200, 2)
    assert len(one) == len(two) == 12
    assert [tokens for _, _, tokens in one] == [tokens for _, _, tokens in two]
    for (loss_one, norm_one, _), (loss_two, norm_two, _) in zip(one, two, strict=True):
        assert loss_two == pytest.approx(loss_one, abs=1e-6)
        assert norm_two == pytest.approx(norm_one, rel=1e-4)


def test_share_returns_its_argument_for_a_single_process():
    alone = Processes()
    assert alone.share(None) is None and alone.share({"a": [1, "b"]}) == {"a": [1, "b"]}
