"""Captured steps on a CUDA device: close to plain steps, the same bits after a resume, no synchronisation."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.tasks.translation import Machine, train_translation
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.interrupts import Interruption
from regard.training.loop import Trainer
from regard.training.progress import NonFinite, StepLate, StepRequest
from regard.training.settings import Training
from regard.training.task import Loss
from tests.training.toys import Numbers, Toy, bits, last, records

pytestmark = pytest.mark.gpu

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "data": {"built_in": "korean", "pairs": 400, "held_out": 8, "tokenizer": "bpe", "subword_sampling": 0.3},
    "model": {"name": "transformer", "width": 32, "heads": 2, "inner": 64, "layers": 2, "dropout": 0.2},
    "training": {
        "steps": 40,
        "batch_tokens": 600,
        "learning_rate": 3e-3,
        "warmup_steps": 5,
        "ema": 0.9,
        "word_dropout": 0.1,
        "max_grad_norm": 0.5,
        "precision": "float32",
        "guided_alignment": 0.0,
        "evaluate_every": 40,
        "save_every": 15,
        "log_every": 1,
        "keep": 9,
    },
    "evaluation": {"sentences": 4, "samples": 0},
}


def train(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    settings = {**SETTINGS, "training": {**SETTINGS["training"], **changed}}
    resumed = folder.exists()
    machine = Machine("cuda")
    train_translation(settings, folder, resume=resumed, machine=machine, console=Console(quiet=True))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_run_is_close_to_a_plain_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
):
    """Without random numbers: captured batches have other shapes, so a token would get other numbers."""
    monkeypatch.setitem(SETTINGS, "model", {**SETTINGS["model"], "dropout": 0.0})
    monkeypatch.setitem(SETTINGS, "data", {**SETTINGS["data"], "subword_sampling": 0.0})
    logged, weights = [], []
    for capture in ("auto", False):
        folder = tmp_path / str(capture)
        train(
            folder, tmp_path / "cache", monkeypatch,
            capture=capture, accumulation_steps=accumulate, word_dropout=0.0, batch_size=24,
            batch_tokens=None,
        )  # fmt: skip
        assert records(folder, "capture") == []
        logged.append([(each["step"], each["loss"], each["norm"]) for each in records(folder, "training")])
        weights.append(last(folder).tensors("raw"))
    assert len(logged[0]) == 40
    for captured, plain in zip(*logged, strict=True):
        assert captured == pytest.approx(plain, rel=1e-3)
    # Not for each tensor: the gradient of a key bias is rounding error, from which AdamW makes large steps.
    captured, plain = (torch.cat([each.flatten() for each in named.values()]) for named in weights)
    assert (captured - plain).norm() <= 5e-3 * plain.norm()


@pytest.mark.parametrize(
    ("accumulate", "r_drop"), [(1, 0.0), (2, 0.0), pytest.param(2, 3.0, id="accumulated-r_drop")]
)
def test_resumed_run_has_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int, r_drop: float
):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    changed = {"accumulation_steps": accumulate, "r_drop": r_drop, "precision": "bfloat16"}
    train(whole, tmp_path / "cache", monkeypatch, **changed)
    shutil.copytree(whole, resumed)
    for checkpoint in Checkpoints(resumed).all():
        if checkpoint.step > 15:
            shutil.rmtree(checkpoint.path)
    train(resumed, tmp_path / "cache", monkeypatch, **changed)
    assert last(resumed).step == 40 and records(resumed, "capture") == []
    assert bits(resumed) == bits(whole)


class OnDevice(Toy):
    """A toy task whose loss is NaN in a batch with an input above 100, computed without the host."""

    def prepare(self, batch: Numbers, device: Any) -> Numbers:
        return Numbers(*(each.pin_memory().to(device, non_blocking=True) for each in (batch.x, batch.y)))

    def loss(self, batch: Numbers) -> Loss:
        wrong = (self.model(batch.x) - batch.y) ** 2
        wrong = wrong.masked_fill((batch.x > 100).any(), torch.nan)
        return Loss(wrong.sum(), {"loss": wrong.sum().detach()})


def toy_trainer(folder: Path, task: Toy, **settings: Any) -> Trainer:
    chosen = Training(steps=30, learning_rate=0.05, evaluate_every=99, ema=0.5, best="loss", **settings)
    return Trainer(task, chosen, folder, seed=5, device="cuda")


@pytest.mark.parametrize("capture", ["auto", False])
def test_nonfinite_step_is_found_and_not_applied(tmp_path: Path, capture: Any):
    task = OnDevice()
    task.x[int(torch.randperm(24, generator=torch.Generator().manual_seed(0))[13]), 0] = 101.0
    run = toy_trainer(tmp_path, task, capture=capture)
    with pytest.raises(NonFinite, match="step 4: "):
        run.run()
    assert (run._captured is not None) == (capture == "auto")
    assert run.progress.step == 4
    good = OnDevice()
    good.x[int(torch.randperm(24, generator=torch.Generator().manual_seed(0))[13]), 0] = 101.0
    reference = toy_trainer(tmp_path / "good", good, capture=capture)
    for _ in range(3):
        reference.take_step()
    torch.testing.assert_close(run.model[0].weight, reference.model[0].weight)
    assert run.average is not None and reference.average is not None
    torch.testing.assert_close(run.average.tensors()["0.weight"], reference.average.tensors()["0.weight"])


@contextmanager
def synchronisation(mode: str) -> Iterator[None]:
    """Let torch raise an error for synchronisations inside the `with` block, if mode is "error"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_step_does_not_synchronise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = toy_trainer(tmp_path, OnDevice())
    assert run._captured is not None
    take, taken = run._captured.take, list[int]()

    def watched(step: StepRequest) -> StepLate:
        with synchronisation("error" if taken else "default"):  # the first step is captured
            taken.append(step.step)
            return take(step)

    monkeypatch.setattr(run._captured, "take", watched)
    for _ in range(7):
        run._step(Interruption())
    assert len(taken) == 7 and run._captured.count == 1
