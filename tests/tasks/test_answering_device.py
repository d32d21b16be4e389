"""Memory networks on a CUDA device: stacked seeds in CUDA graphs, seeds trained alone, and the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.fast.captured.stacked_seeds import StackedGraphs
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.answering import AnsweringTask
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.tasks.small_stories import small, written

pytestmark = pytest.mark.gpu


def weights(settings: dict[str, Any], folder: Path, device: str, seed: str = "") -> dict[str, torch.Tensor]:
    """Train, and return the weights of the last checkpoint, of one seed if the run has several."""
    train_run(AnsweringTask, settings, folder, machine=Machine(device), console=Console(quiet=True))
    return Checkpoints(folder / seed).latest().tensors("weights")


@pytest.mark.parametrize("name", ["end-to-end", "supervised"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_stacked_seeds_are_captured_and_equal_seeds_trained_alone(
    name: str, noise: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    captures, capture = [], StackedGraphs._capture
    monkeypatch.setattr(
        StackedGraphs, "_capture", lambda self, batches: captures.append(1) or capture(self, batches)
    )
    supervised = name == "supervised"
    model = {"name": name} if supervised else {"name": name, "noise": noise}
    training = {"steps": 9, "linear_start": 0 if supervised else 1, "max_grad_norm": 1.0}
    settings = small([written(tmp_path)], model=model, training=training)
    together = weights({**settings, "seeds": 3, "stack": True}, tmp_path / "together", "cuda", "seed-1")
    # One graph for full batches and one for the last batch of an epoch, with and without softmax.
    assert len(captures) == (2 if supervised else 4)
    assert "could not be captured" not in (tmp_path / "together" / "log.jsonl").read_text()
    for device in ("cuda", "cpu"):
        alone = weights({**settings, "seed": 1}, tmp_path / device, device)
        for each, tensor in together.items():
            torch.testing.assert_close(tensor, alone[each], rtol=1e-3, atol=1e-5)
    again = weights({**settings, "seeds": 3, "stack": True}, tmp_path / "again", "cuda", "seed-1")
    assert all(torch.equal(tensor, again[each]) for each, tensor in together.items())
