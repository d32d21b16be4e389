"""Muon: which parameters it updates, its equation, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from regard.models import build_model
from regard.training.gradients import build_optimizer
from regard.training.muon import Muon, orthogonal
from tests.training.toys import trainer


def test_matrices_except_tables_of_tokens_are_updated_by_muon():
    model = build_model("transformer", 30, 40, width=16, heads=2, layers=1, inner=24)
    optimizer = build_optimizer(model, beta2=0.98, weight_decay=0.1, name="muon")
    names = {id(each): name for name, each in model.named_parameters()}
    by_muon = {names[id(p)] for g in optimizer.param_groups if g.get("muon") for p in g["params"]}
    assert "encoder.0.itself.query.weight" in by_muon and "decoder.0.feedforward.outer.weight" in by_muon
    assert not by_muon & {"source.weight", "target.weight", "output.weight", "output.bias"}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)
    assert all(model.get_parameter(name).dim() == 2 for name in by_muon)


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4)])
def test_first_update_is_the_orthogonalised_gradient(shape: tuple[int, int]):
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0], bias=False)
    before, gradient = layer.weight.detach().clone(), torch.randn(shape)
    layer.weight.grad = gradient.clone()
    optimizer = build_optimizer(layer, beta2=0.98, weight_decay=0.5, name="muon")
    assert isinstance(optimizer, Muon)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    wide = gradient if shape[0] <= shape[1] else gradient.T
    exact = orthogonal(wide[None])[0]
    exact = exact if shape[0] <= shape[1] else exact.T
    wanted = before * (1 - 0.1 * 0.5) - 0.1 * 0.2 * max(shape) ** 0.5 * exact
    assert torch.allclose(layer.weight, wanted, atol=1e-5)
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    assert (exact - u @ v).norm() < 0.35 * (u @ v).norm()


def test_a_run_with_muon_ends_with_the_same_bits_after_it_was_resumed(tmp_path: Path):
    options = {"optimizer": "muon", "learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0}
    trainer(tmp_path / "parts", steps=3, **options).run()
    trainer(tmp_path / "whole", steps=6, **options).run()
    resumed = trainer(tmp_path / "parts", steps=6, **options)
    assert resumed.resume() is not None
    resumed.run()
    one, other = (trainer(tmp_path / name, steps=6).checkpoints.latest() for name in ("whole", "parts"))
    assert one is not None and other is not None
    weights = other.tensors("weights")
    assert all(torch.equal(value, weights[name]) for name, value in one.tensors("weights").items())
