"""Checkpoints whose values identify their step, for the tests of saving and of damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints

FILES = ("manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors")


def content(step: int, version: int = 0) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return tensors and state whose values identify the step and the version."""
    weights = {"table": torch.arange(6.0).reshape(2, 3) + step, "scale": torch.tensor(version / 8)}
    return {"weights": weights, "optimizer": {"rows": torch.full((3,), step)}}, {"at": [step, version]}


def identify(checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Return the step and version of a checkpoint; assert that all its tensors have their values."""
    assert checkpoint is not None
    step, version = checkpoint.state["at"]
    assert step == checkpoint.step
    for name, tensors in content(step, version)[0].items():
        assert_equal(checkpoint.tensors(name), tensors)
    return step, version


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].equal(tensor), name


def saved_run(folder: Path) -> Path:
    """Save a run folder with checkpoints 100 and 200, of which 100 is the best, and return its path."""
    checkpoints = Checkpoints(folder / "run")
    for step in (100, 200):
        checkpoints.save(step, *content(step))
    checkpoints.mark_best(100)
    return folder / "run"


def steps(folder: Path) -> list[int]:
    return [each.step for each in Checkpoints(folder).all()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
