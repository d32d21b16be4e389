"""Sparse in blocks, without a sort: output, gradients and second derivatives are those of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.backends import blocked
from regard.blocks.sparse_weights import sparse_weights
from tests.agreement.cases import CASES, Case, Inputs

ALPHAS = (1.5, 2.0)
SOME = [case for case in CASES if max(case.size) < 1000 or case.size[0] == 1][::4]


def outputs(inputs: Inputs, dtype: torch.dtype, alpha: float, backend: str) -> list[Tensor]:
    """Return the output of a case with Sparse, and the gradients of its tensors."""
    arguments, tensors = inputs.call(dtype)
    seen = regard.attention(**arguments | {"select": regard.Sparse(alpha)}, backend=backend)
    doutput = inputs.doutput.to(seen.output)
    assert seen.lse is None
    found = torch.autograd.grad(seen.output, tensors, doutput, materialize_grads=True, allow_unused=True)
    return [seen.output.detach(), *found]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_blocks_agree_with_the_reference(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "SPARSE_SCORES", 1 << 11)
    inputs, alpha = Inputs(case), ALPHAS[SOME.index(case) % 2]
    pairs = zip(
        *(outputs(inputs, torch.float64, alpha, each) for each in ("blocked", "reference")), strict=True
    )
    for ours, exact in pairs:
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-11 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_as_exact_as_the_reference(dtype: torch.dtype, alpha: float):
    exact = [torch.randn(2, 3, 300, 16, dtype=dtype) for _ in range(3)]
    select, results = regard.Sparse(alpha), []
    for backend, wide in (("blocked", dtype), ("reference", dtype), ("reference", torch.float64)):
        tensors = [each.to(wide).requires_grad_() for each in exact]
        output = regard.attention(*tensors, mask=regard.causal(), select=select, backend=backend).output
        results.append([output.double(), *(g.double() for g in torch.autograd.grad(output.sum(), tensors))])
    for ours, plain, right in zip(*results, strict=True):
        allowed = 2 * (plain - right).norm() + torch.finfo(dtype).eps * right.norm()
        assert (ours - right).norm() <= allowed


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("keys", [1, 2, 17, 255, 256, 1000, 4096])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_weights_of_awkward_scores(alpha: float, keys: int, scale: float):
    """Random, equal and ordered scores, a few large ones at one end, and rows with a single key."""
    scores = torch.randn(6, keys, dtype=torch.float64)
    scores[1] = 0.3
    scores[2] = torch.linspace(0, 1.7, keys)
    scores[3, -1] = 40.0
    visible = torch.rand(6, keys) < 0.7
    visible[4:] = False
    visible[:, -1] = True
    scores, doutput = (scores * scale).requires_grad_(), torch.randn(6, keys, dtype=torch.float64)
    ours = sparse_weights(scores.masked_fill(~visible, -torch.inf), alpha)
    exact = regard.Sparse(alpha).choose(scores, visible).weights
    gradients = [torch.autograd.grad(each, scores, doutput)[0] for each in (ours, exact)]
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)
    assert torch.equal(ours > 0, exact > 0)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_second_derivatives(alpha: float):
    scores = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda scores: sparse_weights(scores, alpha), scores)


def test_weights_of_a_row_with_nan_are_nan_and_others_are_not():
    scores = torch.randn(3, 300)
    scores[1, 5] = torch.nan
    assert sparse_weights(scores, 1.5).isnan().any(-1).tolist() == [False, True, False]


def test_a_block_has_a_limited_number_of_scores(monkeypatch: pytest.MonkeyPatch):
    sizes = []
    monkeypatch.setattr(
        blocked, "sparse_weights", lambda scores, alpha: sizes.append(scores.numel()) or scores.softmax(-1)
    )
    x = torch.randn(1, 4, 1024, 8)
    assert regard.explain(x, x, select=regard.Sparse()).backend == "blocked"
    regard.attention(x, x, select=regard.Sparse())
    assert max(sizes) <= blocked.SPARSE_SCORES < sum(sizes) == 4 * 1024**2


def test_looks_agree_with_the_reference():
    query, key = torch.randn(2, 2, 40, 8), torch.randn(2, 2, 50, 8)
    look = regard.Look(weights=True, entropy=True, mass=True, alignment=True)
    seen = [
        regard.attention(query, key, select=regard.Sparse(), look=look, backend=backend)
        for backend in ("blocked", "reference")
    ]
    plain = regard.attention(query, key, select=regard.Sparse(), backend="blocked")
    assert torch.equal(seen[0].output, plain.output)
    torch.testing.assert_close(seen[0], seen[1])
