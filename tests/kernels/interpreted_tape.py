"""Tests of the steps of a neural Turing machine under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.fast.recurrent import tape_steps
from regard.fast.twins import Twins
from regard.models.turing_machine import NeuralTuringMachine

CASES: dict[str, dict[str, Any]] = {
    "both": {},
    "feedforward, content": {"controller": "feedforward", "addressing": "content"},
    "location, slots of size 1": {"addressing": "location", "slot_width": 1},
    "several heads, longer moves": {"heads": 3, "max_shift": 2, "slots": 8},
}


def machine(dtype: torch.dtype, seed: int = 0, **options: Any) -> NeuralTuringMachine:
    torch.manual_seed(seed)
    model = NeuralTuringMachine(5, 4, **{"width": 7, "slots": 9, "slot_width": 6, **options})
    with torch.no_grad():
        for each in model.parameters():
            each += torch.randn_like(each) * 0.5
        model.heads.bias += 2 * torch.randn_like(model.heads.bias)
    return model.to(dtype)


def results(dtype: torch.dtype, scale: float, **options: Any) -> list[Tensor]:
    """Return the outputs and the state of a machine, and all gradients, from the same random numbers.

    scale: factor of the loss.
    """
    model = machine(dtype, **options)
    with Twins(model):  # float64 is computed in PyTorch
        logits, state = model(torch.randn(3, 4, 5).to(dtype))
    outputs = [logits, *state.tensors]
    factors = [torch.randn(each.shape).to(dtype) for each in outputs]
    total = sum((each * factor).sum() for each, factor in zip(outputs, factors, strict=True))
    return [*outputs, *torch.autograd.grad(scale * total, list(model.parameters()))]


@pytest.mark.parametrize(
    ("case", "scale"), [*((case, 1.0) for case in CASES), ("both", 1e3), ("feedforward, content", 1e3)]
)
def test_steps_agree(case: str, scale: float, monkeypatch: pytest.MonkeyPatch):
    """With the scale 1e3, many gradients exceed the limit and are clipped."""
    calls, steps = [], tape_steps.machine_steps
    monkeypatch.setattr(tape_steps, "machine_steps", lambda *given: (calls.append(given), steps(*given))[1])
    ours, exact = (results(dtype, scale, **CASES[case]) for dtype in (torch.float32, torch.float64))
    for mine, oracle in zip(ours, exact, strict=True):
        assert mine.dtype == torch.float32 and mine.isfinite().all()
        assert (mine.double() - oracle).norm() / oracle.norm().clamp(min=1e-9) < 1e-5
    assert len(calls) == 1
