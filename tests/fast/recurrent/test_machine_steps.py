"""FastTuringMachine gives the results and gradients of attention calls at each step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from regard.fast.twins import Twins
from regard.models.turing_machine import NeuralTuringMachine


def machine(**options: Any) -> NeuralTuringMachine:
    torch.manual_seed(0)
    sizes = {"width": 7, "slots": 9, "slot_width": 6}
    model = NeuralTuringMachine(5, 4, **{**sizes, **options}).double()
    with torch.no_grad():
        for each in model.parameters():
            each += torch.randn_like(each) * 0.3
    return model


def fused(model: NeuralTuringMachine) -> Any:
    """The model as its twin FastTuringMachine."""

    def run(x: torch.Tensor, state: Any) -> Any:
        with Twins(model) as twins:
            assert twins.chosen
            return model(x, state)

    return run


def gradients(model: NeuralTuringMachine, run: Any, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    model.zero_grad()
    logits, state = run(x, model.start(len(x)))
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    total = (logits * weights).sum() + (state.memory**2).sum() + (state.weights**3).sum()
    (total + state.cell.sum() + state.hidden.sum() + state.reads.sum()).backward()
    return logits.detach(), [each.grad for each in model.parameters()]


@pytest.mark.parametrize(
    ("controller", "addressing", "heads"),
    [
        *itertools.product(["lstm", "feedforward"], ["both", "content", "location"], [1]),
        ("lstm", "both", 3),
        ("feedforward", "location", 2),
    ],
)
def test_fused_steps_agree_with_attention_calls(controller: str, addressing: str, heads: int):
    model = machine(controller=controller, addressing=addressing, heads=heads, max_shift=heads)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    logits, own = gradients(model, fused(model), x)
    stepwise, other = gradients(model, model, x)
    assert torch.allclose(logits, stepwise, atol=1e-12)
    for (name, _), one, two in zip(model.named_parameters(), own, other, strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_weights_give_finite_gradients(scale: float):
    model = machine().float()
    with torch.no_grad():
        for each in model.heads.parameters():
            each.mul_(scale)
    x = torch.randn(2, 12, 5)
    for run in (fused(model), model):
        _, grads = gradients(model, run, x)
        assert all(each.isfinite().all() for each in grads)


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
def test_gradients_are_clipped_at_each_step(controller: str):
    """With large gradients, both ways to run the steps clip alike."""
    model, x = machine(controller=controller, heads=2), torch.randn(3, 6, 5, dtype=torch.float64)

    def grads(run: Any, factor: float) -> list[torch.Tensor]:
        model.zero_grad()
        logits, state = run(x, model.start(len(x)))
        (factor * (logits**2).sum() + factor * sum((each**2).sum() for each in state.tensors)).backward()
        return [each.grad for each in model.parameters()]

    small, large, stepwise = (
        grads(run, factor) for run, factor in ((fused(model), 1e-3), (fused(model), 1e4), (model, 1e4))
    )
    for (name, _), one, two in zip(model.named_parameters(), large, stepwise, strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-9), name
    heads = next(i for i, (name, _) in enumerate(model.named_parameters()) if name == "heads.weight")
    assert large[heads].norm() < 0.1 * (small[heads] * 1e7).norm()


def test_exploding_gradients_stay_finite():
    """Without clipping, the gradient of 800 steps exceeds the range of float32."""
    model = machine().float()
    with torch.no_grad():
        model.recurrent.mul_(8)
    torch.manual_seed(0)
    x = 0.05 * torch.randn(4, 800, 5)
    assert all(each.isfinite().all() for each in gradients(model, fused(model), x)[1])


def test_a_blank_tape_of_zeros_is_safe():
    model = machine()
    model.blank = 0.0
    for run in (fused(model), model):
        assert all(each.isfinite().all() for each in gradients(model, run, torch.zeros(1, 2, 5).double())[1])
