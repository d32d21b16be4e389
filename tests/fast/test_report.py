"""fast_code(): names of twins, or reasons, for training and for search."""

from __future__ import annotations

import pytest

from regard.fast.report import fast_code
from regard.models import build_model


def test_report_names_the_twins_of_a_model():
    rows = fast_code(build_model("bahdanau", 9, 9, width=8))
    assert "FastBahdanau" in rows["training"] and rows["search"] == "BahdanauDecoder"


def test_report_gives_reasons_once():
    model = build_model("bahdanau", 9, 9, width=8, score="concat")
    model.cell.register_forward_hook(lambda *_: None)
    rows = fast_code(model)
    assert rows["training"].count("Concat") == 1 and "hooks" in rows["search"]


def test_report_names_the_switch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_FAST", "0")
    rows = fast_code(build_model("transformer", 9, 9, size="tiny"))
    assert "REGARD_FAST=0" in rows["search"]
