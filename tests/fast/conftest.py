"""The tests of twins use them, also in a run of the tests with REGARD_FAST=0."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_FAST", raising=False)
