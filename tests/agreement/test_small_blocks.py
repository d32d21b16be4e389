"""Block-wise code with blocks so small that every case has several of them."""

from __future__ import annotations

import pytest
import torch

from regard import blocks
from regard.backends import blocked
from tests.agreement.cases import CASES, Case
from tests.agreement.test_backends import assert_case_agrees


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "FEW", 0)
    monkeypatch.setattr(blocks, "AT_ONCE", 1 << 9)
    monkeypatch.setattr(blocks, "ROWS", 16)
    monkeypatch.setattr(blocks, "IN_CACHE", 1 << 10)


def test_parts_of_additive_attention_share_one_workspace():
    """Without it, tanh(q + k) of all rows and keys would be in memory at once."""
    query, key = torch.randn(3, 50, 8), torch.randn(3, 7, 8)
    parts = list(blocks._pieces(query, key))
    assert len(parts) > 2 and len({hidden.data_ptr() for *_, hidden in parts}) == 1
    for some, rows, hidden in blocks._pieces(query, key):
        torch.testing.assert_close(hidden, (query[some, rows, None] + key[some, None]).tanh())


@pytest.mark.parametrize(
    "case", [case for case in CASES if min(case.size) > 1 and max(case.size) < 1000], ids=str
)
def test_small_blocks_agree_with_the_reference(case: Case):
    assert_case_agrees(case, "blocked", "cpu")
