"""Block-wise code with blocks so small that every case has several of them."""

from __future__ import annotations

import pytest

from regard.backends import blocked
from regard.blocks import additive_blocks, tiling
from tests.agreement.cases import CASES, Case
from tests.agreement.test_backends import assert_case_agrees


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "FEW", 0)
    monkeypatch.setattr(tiling, "AT_ONCE", 1 << 9)
    monkeypatch.setattr(tiling, "ROWS", 16)
    monkeypatch.setattr(additive_blocks, "IN_CACHE", 1 << 10)


@pytest.mark.parametrize(
    "case", [case for case in CASES if min(case.size) > 1 and max(case.size) < 1000], ids=str
)
def test_small_blocks_agree_with_the_reference(case: Case):
    assert_case_agrees(case, "blocked", "cpu")
