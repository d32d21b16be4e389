"""regard demo: what it trains, says and leaves, in the seconds that --quick takes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from regard.runs.run_folder import config_of


def test_a_quick_demo_takes_some_steps_and_shows_one_short_sentence(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    settings = importlib.import_module("regard.cli.demo").SETTINGS
    monkeypatch.setitem(settings["data"], "pairs", 400)
    said = command("demo", "--quick", "--output", tmp_path / "run")
    assert said.status == 0, said.err
    assert config_of(tmp_path / "run")["training"]["steps"] >= 30
    assert said.out.count("log-probability") == 1 and "나는 고양이로소이다" in said.out
    assert "reference" not in said.err and said.err.count("evaluation at step") == 1
    assert (tmp_path / "run" / "demo.html").is_file()
    again = command("demo", "--quick", "--output", tmp_path / "run")
    assert again.status == 0 and f"--output {tmp_path / 'run'}-2" in " ".join(again.err.split()).replace(
        "/ ", "/"
    )
    assert "evaluation at step" not in again.err and again.out.count("log-probability") == 1
    other = command("demo", "--quick", "--guided", "--output", tmp_path / "run")
    assert other.status == 2 and "--output" in other.err and "--change" not in other.err
