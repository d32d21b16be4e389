"""benchmarks.generation: outputs are checked before they are timed, and the result files have all rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import generation
from benchmarks.generation import METHODS, Case
from regard.decoding import Greedy, Rules
from tests.facts import table_rows


def test_results_have_a_row_for_each_method_and_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generation, "CASES", {"cpu": {"tiny-2": Case("tiny", 30, 2)}})
    monkeypatch.setattr(generation.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["generation", "--into", str(tmp_path), "--seconds", "0.001"])
    assert generation.main() == 0
    (file,) = tmp_path.glob("*-generation-cpu.json")
    case = json.loads(file.read_text())["cases"]["tiny-2"]
    assert case["same tokens, float64"] == dict.fromkeys(METHODS, 1.0)
    assert [(row["method"], row["peer"]) for row in case["rows"]] == [
        (method, peer) for method in METHODS for peer in ("regard", "regard, simple search")
    ]
    assert any(row[:3] == ["tiny-2", "top-k", "regard"] for row in table_rows(capsys.readouterr().out))


def test_other_outputs_fail_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = Greedy(Rules(maximum=3))
    simple = generation.simple
    monkeypatch.setattr(generation, "simple", lambda model, prompts, how: simple(model, prompts, short))
    record = generation.measure(Case("tiny", 30, 2), "cpu", 0.001)
    assert record["rows"] == [] and "failed" in capsys.readouterr().err
