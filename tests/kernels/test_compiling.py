"""Every kernel compiles for Hopper, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import ROOT

KERNELS = {
    "additive_prepare_kernel", "additive_scores_kernel", "additive_read_kernel",
    "additive_combine_kernel", "additive_decode_kernel", "additive_decode_backward_kernel",
    "additive_weigh_kernel", "additive_balance_kernel", "additive_value_backward_kernel",
    "additive_key_backward_kernel", "additive_query_backward_kernel",
}  # fmt: skip


@pytest.mark.slow
def test_every_kernel_compiles(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled"],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert {line.split()[0] for line in ran.stdout.splitlines()} == KERNELS
