"""Run kernel tests in subprocesses: Triton chooses between interpreter and compiler when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.reading import ROOT

__all__ = ["assert_passes_interpreted", "compiled_kernels"]


def assert_passes_interpreted(*arguments: str) -> None:
    """Run pytest in this folder with these arguments (files and options) under Triton's interpreter.

    No test may fail or be skipped. One process for several files imports torch once.
    """
    environment = {each: value for each, value in os.environ.items() if not each.startswith("PYTEST")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    folder = ROOT / "tests" / "kernels"
    completed = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-6000:] + completed.stderr[-2000:]
    assert " passed" in completed.stdout and " skipped" not in completed.stdout


def compiled_kernels(name: str, cache: Path) -> set[str]:
    """Run a module of this folder that compiles kernels and prints their names; return the names."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", f"tests.kernels.{name}"]
    completed = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-4000:]
    return {line.split()[0] for line in completed.stdout.splitlines()}
