"""The neural Turing machine on a CUDA device: its kernels, and seeds trained as one stacked model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import regard
from regard.models.turing_machine import NeuralTuringMachine
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.algorithms import AlgorithmsTask

pytestmark = pytest.mark.gpu

CASES: dict[str, dict[str, Any]] = {
    "both": {},
    "content": {"addressing": "content"},
    "location": {"addressing": "location"},
    "feedforward, four heads": {"controller": "feedforward", "heads": 4},
    "slots of size 1": {"slots": 2560, "slot_width": 1},
}
SETTINGS: dict[str, Any] = {
    "data": {"built_in": "copy", "length": [1, 6]},
    "model": {"slots": 32},
    "training": {"steps": 20, "batch_size": 8, "evaluate_every": 10},
}


def results(model: NeuralTuringMachine) -> list[torch.Tensor]:
    """Return the outputs and the state of a machine, and all gradients, from the same random numbers."""
    torch.manual_seed(0)
    weight = model.input.weight
    logits, state = model(torch.randn(19, 12, 9).to(weight))
    outputs = [logits, *state.tensors]
    total = sum((each * torch.randn(each.shape).to(each)).sum() for each in outputs)
    return [each.double().cpu() for each in (*outputs, *torch.autograd.grad(total, list(model.parameters())))]


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_float64(case: str):
    torch.manual_seed(0)
    model = NeuralTuringMachine(9, 8, **CASES[case])
    with torch.no_grad():
        model.heads.bias += torch.randn_like(model.heads.bias)
    oracle = results(model.double())
    for ours, exact in zip(results(model.float().cuda()), oracle, strict=True):
        assert ours.isfinite().all()
        assert (ours - exact).norm() <= 2e-3 * exact.norm().clamp(min=1e-6)


def test_stacked_graphs_train_as_single_seeds_without_graphs(tmp_path: Path):
    """After 20 steps, the weights are those of runs of one seed each, without stacking and CUDA graphs."""
    machine, page = Machine("cuda"), tmp_path / "log"
    with page.open("w") as log:
        console = Console(file=log, width=200)
        train_run(
            AlgorithmsTask, {**SETTINGS, "seeds": 3}, tmp_path / "all", machine=machine, console=console
        )
    text = page.read_text()
    assert "as one stacked model" in text and "one by one" not in text and "could not be captured" not in text
    for seed in range(3):
        training = {**SETTINGS["training"], "capture": False}
        settings = {**SETTINGS, "seed": seed, "training": training}
        folder = tmp_path / str(seed)
        train_run(AlgorithmsTask, settings, folder, machine=machine, console=Console(quiet=True))
        alone = regard.load(folder, device="cpu", checkpoint="latest").model
        together = regard.load(tmp_path / "all", seed=seed, device="cpu", checkpoint="latest").model
        for (name, one), two in zip(alone.named_parameters(), together.parameters(), strict=True):
            assert torch.allclose(one, two, atol=2e-3), name
