"""The script that torchrun starts in test_distributed.py: train a small model."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

from regard.tasks.translation import Machine, train_translation
from regard.training.settings import merged
from regard.training.task import Capture
from tests.training.fake_graphs import install

# With 320 pairs, the last batch has several. A single pair would join another batch with two processes.
SETTINGS: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 320, "held_out": 8},
    "model": {"name": "luong", "width": 16, "dropout": 0.0},
    "training": {
        "steps": 12,
        "accumulation_steps": 2,
        "warmup_steps": 4,
        "log_every": 1,
        "guided_alignment": 0.0,
    },
    "evaluation": {"sentences": 2, "samples": 0},
}


def main(folder: Path, tokens: int, steps: str = "plain") -> None:
    """Train with batches of this many tokens per process.

    steps: "plain" for steps on a CPU; "one GPU" for CUDA graphs on the first GPU; "captured" for CUDA graphs
        on a fake device; "refused" for the same, but the second process cannot capture its steps.
    """
    torch.set_num_threads(1)
    settings = merged(SETTINGS, {"training": {"batch_tokens": tokens}})
    if steps == "one GPU":
        os.environ["LOCAL_RANK"] = "0"  # NCCL needs a GPU for each process, gloo does not
        joins = functools.partial(torch.distributed.init_process_group, "gloo")
        with mock.patch.object(torch.distributed, "init_process_group", lambda _, **rest: joins(**rest)):
            train_translation(settings, folder, machine=Machine("cuda"), console=Console(quiet=True))
        return
    if steps == "plain":
        train_translation(settings, folder, machine=Machine("cpu"), console=Console(quiet=True))
        names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        Path(folder, f"threads-{os.environ.get('RANK')}").write_text("\n".join(names))
        return
    with pytest.MonkeyPatch.context() as patch:
        graphs, rank = install(patch), os.environ["RANK"]
        graphs.refuses = steps == "refused" and rank == "1"
        chosen = "regard.training.length_buckets.capture_chosen"
        patch.setattr(chosen, lambda *_: Capture(True, ""))
        train_translation(settings, folder, machine=Machine("cpu"), console=Console(quiet=True))
        Path(folder, f"replayed-{rank}").write_text(str(graphs.replayed))


def losses(folder: Path) -> list[tuple[float, float, int]]:
    """Return (loss, gradient norm, tokens) of each step, from the log."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(each["loss"], each["norm"], each["tokens"]) for each in records if each["kind"] == "training"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
