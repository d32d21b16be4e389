"""Block-wise code with blocks so small that every case has several of them."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import blocks
from regard.backends import blocked, rows
from regard.call import Call
from tests.agreement.cases import CASES, Case
from tests.agreement.test_backends import assert_case_agrees


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "FEW", 0)
    monkeypatch.setattr(blocked, "FEW_OF_ONE_QUERY", 0)
    monkeypatch.setattr(blocked, "MOST_SCORES", 1 << 9)
    monkeypatch.setattr(rows, "ROWS", 16)
    monkeypatch.setattr(rows, "FEWEST_SCORES", 0)
    monkeypatch.setattr(blocks, "AT_ONCE", 1 << 9)
    monkeypatch.setattr(blocks, "ROWS", 16)
    monkeypatch.setattr(blocks, "IN_CACHE", 1 << 10)


def test_parts_of_additive_attention_share_one_workspace():
    """Without it, tanh(q + k) of all rows and keys would be in memory at once."""
    query, key = torch.randn(3, 50, 8), torch.randn(3, 7, 8)
    parts = list(blocks._pieces(query, key))
    assert len(parts) > 2 and len({hidden.data_ptr() for *_, hidden in parts}) == 1
    for some, place, hidden in blocks._pieces(query, key):
        torch.testing.assert_close(hidden, (query[some, place, None] + key[some, None]).tanh())


@pytest.mark.parametrize(
    "case", [case for case in CASES if min(case.size) > 1 and max(case.size) < 1000], ids=str
)
def test_small_blocks_agree_with_the_reference(case: Case):
    assert_case_agrees(case, "blocked", "cpu")


@pytest.mark.parametrize(
    "case", [case for case in CASES if min(case.size) > 16 and max(case.size) < 1000], ids=str
)
def test_blocks_of_rows_agree_with_the_reference(case: Case):
    assert_case_agrees(case, "sdpa-cpu", "cpu")


MASKS = {
    "window": regard.window(left=5, right=2),
    "causal window": regard.causal() & regard.window(left=20),
    "documents": regard.documents(torch.arange(2 * 70).view(2, 70) // 23),
    "unsorted documents": regard.documents(torch.arange(2 * 70).view(2, 70) % 3),
    "window and padding": regard.window(left=9, right=9) & regard.padding([70, 3]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    "bias", [None, regard.ALiBi(4), torch.randn(70, 70).where(torch.eye(70) < 1, -torch.inf)]
)
def test_blocks_of_rows_with_masks_and_biases(mask: regard.Mask, bias: torch.Tensor | regard.ALiBi | None):
    inputs = [torch.randn(2, heads, 70, 8, dtype=torch.float64).requires_grad_() for heads in (4, 2, 2)]
    if isinstance(bias, torch.Tensor):
        bias = bias.double()
    results = []
    for backend in ("sdpa-cpu", "reference"):
        seen = regard.attention(*inputs, mask=mask, bias=bias, select=regard.Soft(0.7), backend=backend)
        gradients = torch.autograd.grad(seen.output.sin().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in gradients), inputs)
        results.append((seen.output, seen.lse, *gradients, *second))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_window_reads_few_keys_per_block_and_computes_its_mask_once(monkeypatch: pytest.MonkeyPatch):
    made, x = [], torch.randn(1, 2, 320, 8)
    added = Call.added
    monkeypatch.setattr(Call, "added", lambda *given: made.append(given[2]) or added(*given))
    regard.attention(x, x, mask=regard.causal() & regard.window(left=16), backend="sdpa-cpu")
    assert max(len(tile.columns_S) for tile in made) == 32 and len(made) <= 3  # of 20 blocks
