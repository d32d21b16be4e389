"""interpreted_cells.py in a process of its own: Triton decides whether to interpret when it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.reading import ROOT


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
