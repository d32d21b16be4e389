"""The optimizer and the moving average of the weights: parameter groups, saving and loading."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import DataError, UnknownName
from regard.training.gradients import Average, build_optimizer, load_optimizer, optimizer_tensors
from tests.facts import facts


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    return model, build_optimizer(model, beta2=0.98, weight_decay=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    model(torch.randn(5, 3)).square().sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def test_weight_decay_applies_to_matrices_only():
    model, optimizer = build()
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decays[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if p.dim() == 2 else 0.0 for name, p in model.named_parameters()
    }


def test_frozen_parameters_are_not_optimized():
    model, _ = build()
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model, beta2=0.98, weight_decay=0.1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


def test_loaded_optimizer_continues_with_the_same_bits():
    model, optimizer = build()
    for seed in range(3):
        step(model, optimizer, seed)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    saved = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    other, fresh = build()
    other.load_state_dict(weights)
    load_optimizer(other, fresh, saved, "here")
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(other, fresh, seed)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_sgd_takes_the_step_of_its_equation_and_is_restored(momentum: float):
    options = {"beta2": 0.98, "weight_decay": 0.1, "name": "sgd", "momentum": momentum}
    model, _ = build()
    optimizer = build_optimizer(model, **options)
    weight, velocity = model[0].weight.detach().clone(), torch.zeros(4, 3)
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = torch.randn(5, 3)
        gradient = torch.autograd.grad(model(inputs).square().sum(), model[0].weight)[0]
        velocity = momentum * velocity + gradient + 0.1 * weight
        step(model, optimizer, seed)
        weight = weight - 0.1 * velocity
        torch.testing.assert_close(model[0].weight.detach(), weight)
    saved = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    assert len(saved) == (6 if momentum else 0)
    other, _ = build()
    other.load_state_dict(model.state_dict())
    fresh = build_optimizer(other, **options)
    load_optimizer(other, fresh, saved, "here")
    step(model, optimizer, 3)
    step(other, fresh, 3)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_state_of_another_optimizer_raises():
    model, adamw = build()
    step(model, adamw, 0)
    sgd = build_optimizer(model, beta2=0.98, weight_decay=0.0, name="sgd")
    with pytest.raises(DataError, match=facts("here", "exp_avg", "state")):
        load_optimizer(model, sgd, optimizer_tensors(model, adamw), "here")


def test_unknown_optimizer_raises():
    with pytest.raises(UnknownName, match=facts("'adam'", "adamw", "sgd")):
        build_optimizer(build()[0], beta2=0.98, weight_decay=0.0, name="adam")


def test_state_of_another_model_raises():
    model, optimizer = build()
    with pytest.raises(DataError, match=r"'9\.weight'"):
        load_optimizer(model, optimizer, {"9.weight/exp_avg": torch.zeros(1)}, "step-000001")


def test_average_approaches_constant_weights_and_restores_the_raw_weights():
    model, _ = build()
    average = Average(model, decay=0.999)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    for number in range(1, 60):
        average.update(number)
    with average.applied():
        torch.testing.assert_close(model[0].weight, torch.ones(4, 3), rtol=1e-4, atol=1e-4)
        assert not torch.equal(model[0].weight, torch.ones(4, 3))
    assert torch.equal(model[0].weight, torch.ones(4, 3))


def test_loaded_average_equals_the_saved_one():
    model, _ = build()
    average, other = Average(model, decay=0.5), Average(model, decay=0.5)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    average.update(100)
    other.load(average.tensors())
    assert all(
        torch.equal(one, two)
        for one, two in zip(average.tensors().values(), other.tensors().values(), strict=True)
    )
