"""Training on ten million pairs fits in two gigabytes, extrapolated from smaller corpora."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import ROOT

TRAIN = """
import random, resource, sys
from pathlib import Path
from rich.console import Console
from regard.tasks.translation import Machine, train_translation

folder, pairs = Path(sys.argv[1]), int(sys.argv[2])
draw, words = random.Random(0), [f"word{number}" for number in range(2000)]
with open(folder / "a.ko", "w") as source, open(folder / "a.en", "w") as target:
    for number in range(pairs):
        sentence = draw.choices(words, k=draw.randrange(4, 16))
        print(*sentence, file=source)
        print(*reversed(sentence), file=target)
settings = {
    "data": {"source": str(folder / "a.ko"), "target": str(folder / "a.en"), "tokenizer": "word"},
    "model": {"name": "luong", "width": 16, "feeding": False},
    "training": {"steps": 20, "batch_tokens": 1000, "evaluate_every": 20},
    "evaluation": {"sentences": 2, "samples": 0},
}
train_translation(settings, folder / "run", machine=Machine("cpu", 1), console=Console(quiet=True))
status = Path("/proc/self/status")  # on Linux, getrusage() can return the peak of the parent process
if status.exists():
    print(int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(folder: Path, pairs: int) -> int:
    """Return the peak memory of training on this many pairs, in bytes."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "REGARD_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", TRAIN, str(folder), str(pairs)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ten_million_pairs_fit_in_two_gigabytes(tmp_path: Path):
    # Buffers of a fixed size, together about 30 MB, are full from 150,000 pairs on.
    few, many = 150_000, 1_000_000
    least, most = peak(tmp_path / "few", few), peak(tmp_path / "many", many)
    each = (most - least) / (many - few)
    assert least + each * 10_000_000 < 2 * 2**30, f"{each:.0f} bytes a pair"
