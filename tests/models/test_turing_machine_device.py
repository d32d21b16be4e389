"""The neural Turing machine on a CUDA device: its kernels agree with float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.fast.twins import Twins
from regard.models.turing_machine import NeuralTuringMachine

pytestmark = pytest.mark.gpu

CASES: dict[str, dict[str, Any]] = {
    "both": {},
    "content": {"addressing": "content"},
    "location": {"addressing": "location"},
    "feedforward, four heads": {"controller": "feedforward", "heads": 4},
    "slots of size 1": {"slots": 2560, "slot_width": 1},
}


def results(model: NeuralTuringMachine) -> list[torch.Tensor]:
    """Return the outputs and the state of a machine, and all gradients, from the same random numbers."""
    torch.manual_seed(0)
    weight = model.input.weight
    with Twins(model):
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
