"""Every looking pass against the oracle: every look, after every forward that gives an lse."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.backends import BACKENDS, reference
from regard.blocks import walk
from regard.looking import PASSES
from tests.agreement.cases import CASES, DTYPES, Case, Inputs, checked

LOOK = regard.Look(rows=(0, -1), top=3, alignment=True, entropy=True, mass=True)
FORWARDS = ["reference", "sdpa-cpu", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "fused", "blocked"]


def error(found: torch.Tensor, oracle: torch.Tensor) -> float:
    return (found.double() - oracle).abs().max().item() if oracle.numel() else 0.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocked_looks_agree(case: Case, device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "AT_ONCE", 1 << 9)
    monkeypatch.setattr(walk, "ROWS", 48)
    inputs, dtype = Inputs(case, device, gradients=False), DTYPES[case.dtype]
    call, exact = checked(inputs.call(dtype)[0], LOOK), checked(inputs.call(torch.float64)[0], LOOK)
    assert not PASSES["blocked"].reasons(call, call.look)
    oracle = PASSES["materialised"].run(exact, reference.run(exact), exact.look)
    plain = PASSES["materialised"].run(call, reference.run(call), call.look)
    scores, visible = reference.compare(exact)
    loudest = scores[visible].abs().max().item() / case.temperature if visible.any() else 1.0
    step = 8 * torch.finfo(dtype).eps * max(1.0, loudest)
    for name in FORWARDS:
        if BACKENDS[name].reasons(call):
            continue
        seen = PASSES["blocked"].run(call, BACKENDS[name].run(call), call.look)
        for look in ("rows", "entropy", "mass"):
            wanted, found = getattr(oracle, look), getattr(seen, look)
            assert found.shape == wanted.shape
            budget = 2 * error(getattr(plain, look), wanted) + step * max(1.0, wanted.abs().max().item())
            assert error(found, wanted) <= budget
        best = error(plain.top.weights, oracle.top.weights)
        assert error(seen.top.weights, oracle.top.weights) <= 2 * best + step
        assert torch.equal(seen.top.keys < 0, oracle.top.keys < 0)
        assert torch.equal(seen.alignment < 0, oracle.alignment < 0)
        assert torch.equal(seen.alignment, seen.top.keys[..., 0])
        # The key that was named holds the weight that was named, and no other key holds more.
        whole = torch.softmax(torch.where(visible, scores / case.temperature, -torch.inf), -1)
        named = whole.gather(-1, seen.top.keys.clamp_min(0)).where(seen.top.keys >= 0, 0.0)
        assert error(named, oracle.top.weights) <= 2 * best + step


@pytest.mark.parametrize(
    "select", [regard.Sparse(), regard.Gate(), regard.Best(), regard.Hard()], ids=lambda s: type(s).__name__
)
def test_other_selections_keep_their_weights(select: regard.Select):
    x = torch.randn(2, 3, 7, 8)
    seen = regard.attention(
        x,
        x,
        x,
        mask=regard.causal(),
        select=select,
        look=regard.Look(weights=True, mass=True, alignment=True),
    )
    assert torch.allclose(seen.weights @ x, seen.output, atol=1e-6)
    assert torch.allclose(seen.weights.sum(-2), seen.mass)
    assert torch.equal(seen.weights.gather(-1, seen.alignment[..., None])[..., 0], seen.weights.amax(-1))
    assert "blocked" in PASSES and PASSES["blocked"].reasons(checked_call(x, select), regard.Look(mass=True))


def checked_call(x: torch.Tensor, select: regard.Select):
    from regard.checking import check

    return check(x, x, x, regard.ScaledDot(), None, None, select, 0, 0.0, None)
