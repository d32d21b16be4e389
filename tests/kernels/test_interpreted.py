"""interpreted.py in processes of their own: Triton decides whether to interpret when a kernel is loaded, and
a process that does cannot also compile for a device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.reading import ROOT

SHARES = {
    "agreement": "test_agrees",
    "seams": "not test_agrees",
}


@pytest.mark.parametrize("share", SHARES)
def test_kernels_agree_under_the_interpreter(share: str):
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    for name in [name for name in environment if name.startswith("PYTEST")]:
        del environment[name]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", SHARES[share]]
    file = ROOT / "tests" / "kernels" / "interpreted.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout and " skipped" not in ran.stdout
