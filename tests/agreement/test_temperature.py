"""Temperatures that are not powers of two: half-precision tensors are widened before they are divided."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.backends import BACKENDS, reference
from regard.looking import PASSES
from tests.agreement.cases import checked
from tests.agreement.exact import in_float64

HALF = [torch.bfloat16, torch.float16]
SCORES = {"scaled_dot": ["sdpa-cpu", "blocked", "reference"], "additive": ["blocked", "reference"]}


def arguments(score: str, dtype: torch.dtype, temperature: float) -> dict[str, object]:
    """Return a call in half precision with a large bias and, for Additive, a large vector."""
    scorer = regard.build_score(score, 16, 16)
    if isinstance(scorer, regard.Additive):
        torch.nn.init.normal_(scorer.vector, std=20.0)
    tensors = {
        name: torch.randn(2, 2, size, 16).to(dtype)
        for name, size in {"query": 9, "key": 13, "value": 13}.items()
    }
    return {
        **tensors,
        "score": scorer.to(dtype) if isinstance(scorer, torch.nn.Module) else scorer,
        "mask": None,
        "bias": (60 + torch.randn(2, 1, 9, 13)).to(dtype),
        "select": regard.Soft(temperature),
        "start": 0,
    }


@pytest.mark.parametrize("temperature", [3.0, 0.7, 1.3])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("score", "backend"), [(s, b) for s, names in SCORES.items() for b in names])
def test_half_precision_bias_is_widened_before_division(
    score: str, backend: str, dtype: torch.dtype, temperature: float
):
    call = checked(arguments(score, dtype, temperature))
    forward, oracle = BACKENDS[backend].run(call), reference.run(in_float64(call))
    assert forward.lse is not None and oracle.lse is not None
    torch.testing.assert_close(forward.lse.double(), oracle.lse, rtol=2e-6, atol=1e-5)
    # The output is rounded to its dtype; sdpa-cpu rounds the weights to it too.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(forward.output.double(), oracle.output, rtol=eps, atol=eps)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_blocked_looks_widen_before_division(score: str, dtype: torch.dtype):
    look = regard.Look(rows=(0, -1), entropy=True, mass=True)
    call = checked(arguments(score, dtype, 3.0), look)
    assert call.look is not None
    exact = in_float64(call)
    oracle = PASSES["materialised"].run(exact, reference.run(exact), call.look)
    seen = PASSES["blocked"].run(call, BACKENDS["blocked"].run(call), call.look)
    for name in ("rows", "entropy", "mass"):
        torch.testing.assert_close(
            getattr(seen, name).double(), getattr(oracle, name), rtol=1e-4, atol=1e-5, msg=name
        )


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_a_cuda_kernel_that_would_round_the_quotient_gives_a_reason(temperature: float):
    call = checked(arguments("scaled_dot", torch.bfloat16, temperature))
    reasons = BACKENDS["sdpa-efficient"].reasons(call)
    assert any("bfloat16" in reason for reason in reasons) == (temperature == 3.0)
