"""Run tests with the instructions of other processors: python -m tests.processors [arguments of pytest].

PyTorch, oneDNN, MKL and OpenBLAS choose their code by the processor, and each code rounds sums differently.
So a test can pass on one processor and fail on another. The environment variables below choose the code of
older processors. Without arguments, the quick tests of numerical code are run, once per setting.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

__all__ = ["SETTINGS", "environment", "supported"]

SETTINGS = {
    "DEFAULT": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "AVX512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
}
"""Environment variables by the name of a capability (get_cpu_capability()), oldest processors first."""

NUMERICAL = (
    "src/regard", "tests/agreement", "tests/aligner", "tests/cli/test_score.py", "tests/compare",
    "tests/decoding", "tests/evaluation", "tests/fast", "tests/huggingface", "tests/kernels",
    "tests/layers", "tests/models", "tests/papers", "tests/reliability", "tests/runs", "tests/tasks",
    "tests/test_attention.py", "tests/test_interventions.py", "tests/test_look.py", "tests/test_masks.py",
    "tests/test_memory.py", "tests/test_positions.py", "tests/test_scores.py", "tests/test_select.py",
    "tests/test_sites.py", "tests/test_transforms.py", "tests/training",
)  # fmt: skip


def supported(capability: str) -> list[str]:
    """Return the settings that a processor of this capability can run; none if it is not an x86-64."""
    names = list(SETTINGS)
    return names[: names.index(capability) + 1] if capability in names else []


def environment(name: str, cache: Path) -> dict[str, str]:
    """Return the environment variables of a setting, beside those of this process.

    cache: folder for the code that torch.compile writes. PyTorch finds code there by a key without the
    processor, so that code for the vectors of AVX-512 could be used with those of AVX2.
    """
    ours = {"OMP_NUM_THREADS": "1", "REGARD_SEED": "0", "TORCHINDUCTOR_CACHE_DIR": str(cache / name)}
    return {**os.environ, **ours, **SETTINGS[name]}


def main(arguments: list[str]) -> int:
    """Run pytest once per setting and print a summary; return the exit status."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    names = supported(torch.backends.cpu.get_cpu_capability()) if x86 else []
    pytest = [sys.executable, "-m", "pytest", "-n", "auto", "--maxprocesses", "4"]
    command = [*pytest, "-m", "not slow and not gpu", *(arguments or NUMERICAL)]
    results = dict.fromkeys(SETTINGS, "not supported by this processor")
    failed = False
    for name in names:
        print(name, *(f"{variable}={value}" for variable, value in SETTINGS[name].items()), flush=True)
        with (
            tempfile.TemporaryDirectory() as cache,
            subprocess.Popen(
                command, env=environment(name, Path(cache)), stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                results[name] = line.strip("= \n") or results[name]
        failed |= process.returncode not in (0, 5)  # 5: the arguments select no test
    for name, result in results.items():
        print(f"{name:8} {result}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
