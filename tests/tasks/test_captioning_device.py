"""Captioning on a GPU: images stay there, and training steps with and without CUDA graphs are the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.tasks.captioning import CaptioningTask
from regard.tasks.captioning import task as data
from regard.tasks.captioning.task import DeviceImages
from regard.training.distributed import Processes
from regard.training.gradients import Gradients
from tests.tasks.test_captioning_task import HARD, REINFORCE, files, made, of_files, small

__all__ = ["files"]

VARIANTS: dict[str, dict[str, Any]] = {
    "soft": {},
    "penalty": {"training": {"doubly_stochastic": 1.0, "word_noise": 0.3}},
    "none": {"model": {"select": "none", "dropout": 0.2}},
    "hard": {"model": HARD, "training": REINFORCE},
    "hard, learned baseline": {
        "model": {**HARD, "dropout": 0.2},
        "training": {"estimator": {"samples": 2, "entropy": 0.01, "baseline": {"name": "learned"}}},
    },
}


@pytest.mark.parametrize("changes", [{}, {"flip": True, "crop_margin": 3}])
def test_images_on_the_device_are_those_that_workers_prepare(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    usual = made(of_files(files, **changes), tmp_path / "run")
    monkeypatch.setattr("regard.tasks.captioning.task.fits_on_device", lambda device, needed: True)
    stored = CaptioningTask(usual.model, usual.corpus, usual.settings, Processes())
    assert isinstance(stored._train_store, DeviceImages) and usual._train_store is None
    for epoch in (0, 1):
        for first, second in zip(usual.batches(epoch), stored.batches(epoch), strict=True):
            ready = stored.prepare(second, "cpu")
            assert second.source.shape[1:] == ((4,) if changes else ()) and first.image.shape[1:] == (
                3,
                16,
                16,
            )
            assert torch.equal(ready.image, first.image) and torch.equal(ready.target, first.target)
    scores = [task.evaluate(lambda: False).scores["loss"] for task in (usual, stored)]
    assert scores[0] == pytest.approx(scores[1])


def test_a_cpu_keeps_no_copy_of_the_images():
    assert not data.fits_on_device("cpu", 0)


def gradients_of(task: CaptioningTask, captured: bool, messages: list[str]) -> Tensor:
    """Return the gradients of the third training step, and the buffers, as one vector."""
    task.model.train()
    gradients = Gradients(task, seed=1, device=torch.device("cuda"), say=messages.append, captured=captured)
    for step, batch in zip(range(3), task.batches(0), strict=False):
        task.model.zero_grad(set_to_none=True)
        gradients.add(step, [batch], 50)
    assert gradients.captures == captured
    tensors = [each.grad for each in task.model.parameters() if each.grad is not None]
    return torch.cat([each.double().flatten().cpu() for each in (*tensors, *task.model.buffers())])


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_captured_steps_have_the_gradients_of_uncaptured_ones(name: str, tmp_path: Path):
    task, messages = made(small(**VARIANTS[name]), tmp_path), list[str]()
    assert not task.speed.capture.problem
    results = []
    for captured in (False, True, True):
        model = copy.deepcopy(task.model)
        if hasattr(model, "estimator"):
            del model.estimator  # the task adds a new one
        settings = task.settings
        fresh = CaptioningTask(model.cuda(), task.corpus, settings, Processes(), device="cuda")
        # The new estimator has a random learned baseline: use the same weights in all three runs.
        fresh.model.load_state_dict(task.model.state_dict())
        assert fresh.speed.captures and isinstance(fresh._train_store, DeviceImages)
        results.append(gradients_of(fresh, captured, messages))
    assert messages == []
    # cuDNN's backward pass of a convolution may add numbers in another order each time.
    assert (results[1] - results[2]).norm() <= 1e-5 * results[1].norm()
    assert (results[1] - results[0]).norm() <= 1e-3 * results[0].norm()
