"""Dropout: applied to the weights, scaled, the same in forward and backward, and not part of looks."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.backends import blocked

BACKENDS = ["reference", "blocked"]
ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("short", "sdpa-flash", "sdpa-efficient")]


@pytest.mark.parametrize("backend", [*BACKENDS, *ON_GPU])
def test_the_mean_over_many_samples_is_the_output_without_dropout(backend: str):
    on_gpu = backend not in BACKENDS
    x = torch.randn(1, 1, 4, 8, device="cuda" if on_gpu else "cpu", dtype=torch.float16 if on_gpu else None)
    many = x.expand(4000, 1, 4, 8)
    dropped = regard.attention(many, many, many, dropout=0.3, backend=backend).output.float()
    exact = regard.attention(x, x, x).output[0]
    spread = dropped.std(0) / 4000**0.5
    assert ((dropped.mean(0) - exact).abs() <= 5 * spread + torch.finfo(x.dtype).eps * 4).all()
    assert dropped.std(0).max() > 0.05


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_zeroed_or_scaled(backend: str):
    query, value = torch.zeros(1, 1, 1, 4), torch.eye(200)[None, None]
    output = regard.attention(query, torch.zeros(1, 1, 200, 4), value, dropout=0.25, backend=backend).output
    kept = output > 0
    torch.testing.assert_close(output[kept], torch.full_like(output[kept], 1 / 200 / 0.75))
    assert 0.6 < kept.double().mean() < 0.9


@pytest.mark.parametrize("most", [blocked.MOST_SCORES, 0])
def test_forward_and_backward_drop_the_same_weights(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "MOST_SCORES", most)
    query, key = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(2, 3, 7, 4, dtype=torch.float64)
    value = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    inputs = [each.requires_grad_() for each in (query, key, value)]

    def run(*given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return regard.attention(*given, dropout=0.4, backend="blocked").output

    assert torch.autograd.gradcheck(run, inputs)


def test_looks_are_those_before_dropout():
    x = torch.randn(2, 3, 5, 4)
    look = regard.Look(weights=True, entropy=True)
    with_dropout, without = (regard.attention(x, x, x, dropout=p, look=look) for p in (0.5, 0.0))
    torch.testing.assert_close(with_dropout.weights, without.weights)
    torch.testing.assert_close(with_dropout.entropy, without.entropy)


def test_auto_on_cpu_selects_blocked_for_dropout():
    x = torch.randn(2, 3, 5, 4)
    assert regard.explain(x, x, dropout=0.1).backend == "blocked"
