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


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_keys_can_be_loaded_by_a_tensor_descriptor(
    dtype: torch.dtype, heads_first: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(inner_look_pass, "has_tma", lambda device: True)
    monkeypatch.setattr(looking, "SMALL", 0)
    sizes = [(2, 4, 150, 32), (2, 2, 90, 32)]
    if heads_first:
        query, key = (torch.randn(*size).to(dtype) for size in sizes)
    else:
        query, key = (torch.randn(b, n, h, d).to(dtype).transpose(1, 2) for b, h, n, d in sizes)
    assert inner_look_pass.key_block(key, inner_look_pass.tiles_of(32, dtype)) is not None
    look = regard.Look(mass=True, entropy=True, alignment=True)
    mask = regard.padding(torch.tensor([90, 7])) & regard.window(30, 20)
    seen = regard.attention(query, key, look=look, mask=mask, start=3)
    whole = regard.attention(query, key, look=regard.Look(weights=True), mask=mask, start=3).weights
    torch.testing.assert_close(seen.mass, whole.sum(-2), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(seen.entropy, torch.special.entr(whole).sum(-1), atol=1e-3, rtol=1e-3)
    seen_any = whole.any(-1)
    chosen = whole.gather(-1, seen.alignment.clamp_min(0)[..., None])[..., 0]
    assert torch.equal(seen.alignment >= 0, seen_any) and not seen_any.all()
    torch.testing.assert_close(chosen, whole.amax(-1), atol=1e-3, rtol=1e-3)


def test_keys_that_are_no_blocks_of_a_matrix_are_loaded_by_pointers():
    key = torch.zeros(2, 2, 64, 32, dtype=torch.bfloat16)
    tiles = inner_look_pass.tiles_of(32, key.dtype)
    assert inner_look_pass.key_block(key, tiles) is not None
    assert inner_look_pass.key_block(key[:, :1, :5], tiles) is not None
    assert inner_look_pass.key_block(key.float(), tiles) is None
    assert inner_look_pass.key_block(key[..., 4:20], tiles) is None
    assert inner_look_pass.key_block(key[:, :, :1].expand(-1, -1, 64, -1), tiles) is None
