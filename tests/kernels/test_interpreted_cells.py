"""interpreted_cells.py in a process of its own: Triton decides whether to interpret when it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import ROOT

KERNELS = {
    "gated_forward_kernel", "mixed_forward_kernel", "gated_backward_kernel", "mixed_backward_kernel",
    "gru_forward_kernel", "gru_backward_kernel", "cross_entropy_forward_kernel",
    "cross_entropy_backward_kernel", "words_backward_kernel",
}  # fmt: skip


def test_cells_agree_under_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src")}
    for name in [name for name in environment if name.startswith("PYTEST")]:
        del environment[name]
    file = ROOT / "tests" / "kernels" / "interpreted_cells.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout and " skipped" not in ran.stdout


@pytest.mark.slow
def test_every_cell_compiles(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled_cells"],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert {line.split()[0] for line in ran.stdout.splitlines()} == KERNELS
