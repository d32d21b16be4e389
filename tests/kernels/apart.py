"""Triton decides whether to interpret when it is loaded: kernels are tested in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.reading import ROOT

__all__ = ["assert_passes_interpreted", "compiled_kernels"]


def assert_passes_interpreted(name: str, *options: str) -> None:
    """Run a file of this folder by pytest under Triton's interpreter; nothing in it may be skipped."""
    environment = {each: value for each, value in os.environ.items() if not each.startswith("PYTEST")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    file = str(ROOT / "tests" / "kernels" / name)
    ran = subprocess.run([*command, file], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout and " skipped" not in ran.stdout


def compiled_kernels(name: str, cache: Path) -> set[str]:
    """Run a module of this folder that compiles kernels and prints their names."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", f"tests.kernels.{name}"]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return {line.split()[0] for line in ran.stdout.splitlines()}
