"""Tests of the looking pass `fused` under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import looking
from regard.kernels import inner_look_pass
from tests.agreement.cases import CASES, Case
from tests.agreement.test_looking import assert_looks_agree, fused_supports
from tests.kernels import interpreter_patches  # noqa: F401  (applied by the import)

SUPPORTED = [case for case in CASES if max(case.size) < 1000 and fused_supports(case)]
"""The largest cases run on a GPU only: the interpreter is slow."""


def test_the_cases_cover_masks_and_biases():
    assert len(SUPPORTED) >= 10
    assert {case.mask for case in SUPPORTED} >= {"causal", "padding", "window", "documents", "table"}
    assert {case.bias for case in SUPPORTED} >= {"none", "tensor", "-inf"}


@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_looks_agree(case: Case):
    assert_looks_agree(case, "cpu", "fused")


@pytest.mark.parametrize("programs", [1, 2, 3])
def test_the_mass_is_a_sum_over_programs(programs: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inner_look_pass, "processors", lambda device: programs)
    monkeypatch.setattr(inner_look_pass, "FILL", 1)
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = torch.randn(1, 200, 16), torch.randn(1, 150, 16)
    look = regard.Look(mass=True, entropy=True)
    seen = regard.attention(query, key, look=look, mask=regard.causal(), start=20)
    whole = regard.attention(query, key, look=regard.Look(weights=True), mask=regard.causal(), start=20)
    torch.testing.assert_close(seen.mass, whole.weights.sum(-2))
    torch.testing.assert_close(seen.mass.sum(), torch.tensor(200.0))


def test_only_what_is_requested_is_computed():
    x = torch.randn(1, 1, 70, 16)
    entropy, alignment, mass, pooled = inner_look_pass.inner_look(
        x, x, torch.zeros(1, 1, 70), *[None] * 5, 0, None, None, 1.0, 1.0, False, True, False, 0
    )
    assert (entropy.numel(), alignment.shape, mass.numel(), pooled.numel()) == (0, (1, 1, 70), 0, 0)
    assert torch.equal(alignment, (x @ x.mT).argmax(-1))
