"""regard demo: what it trains, says and leaves, in the seconds that --quick takes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from regard.runs.run_folder import config_of


def test_quick_demo_trains_and_draws_one_sentence(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    demo = importlib.import_module("regard.cli.demo")
    assert demo.MINUTES <= 2  # as README.md and the Makefile promise
    monkeypatch.setitem(demo.SETTINGS["data"], "pairs", 400)
    result = command("demo", "--quick", "--output", tmp_path / "run")
    assert result.status == 0, result.err
    assert config_of(tmp_path / "run")["training"]["steps"] >= 30
    assert result.out.count("log-probability") == 1 and "고양이로소이다" in result.out
    assert "reference" not in result.err and result.err.count("evaluation") == 1
    assert (tmp_path / "run" / "demo.html").is_file()
    again = command("demo", "--quick", "--output", tmp_path / "run")
    assert again.status == 0 and f"--output {tmp_path / 'run'}-2" in " ".join(again.err.split()).replace(
        "/ ", "/"
    )
    assert "evaluation" not in again.err and again.out.count("log-probability") == 1
    other = command("demo", "--quick", "--guided", "--output", tmp_path / "run")
    assert other.status == 2 and "--output" in other.err and "--change" not in other.err
