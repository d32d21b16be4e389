"""The benchmark of training runs: what it reads from the log of a run, and its check of the losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training_run
from benchmarks.training_run import WAYS, agreement, summary, table
from tests.facts import mentions


def training(step: int, time: float, speed: float, loss: float) -> dict[str, Any]:
    return {"kind": "training", "step": step, "time": time, "tokens_per_second": speed, "loss": loss}


RECORDS = [
    {"kind": "capture", "text": "not captured", "time": 101.0},
    training(25, 110.0, 10.0, 4.0),
    training(50, 112.0, 1000.0, 3.0),
    {"kind": "evaluation", "step": 50, "time": 115.5, "bleu": 30.0},
    training(75, 117.0, 1200.0, 2.0),
    training(100, 119.0, 1100.0, 1.5),
]


def test_summary_of_a_log():
    row = summary(RECORDS, began=100.0, ended=121.0)
    assert row["seconds"] == 21 and row["seconds until the first record"] == 10
    assert row["tokens/s"] == 1100 and row["evaluation seconds"] == 3.5
    assert (row["steps"], row["bleu"], row["messages"]) == (100, 30.0, ["not captured"])
    empty = summary([], began=100.0, ended=121.0)
    assert empty["tokens/s"] is None and empty["steps"] == 0


def test_losses_are_compared_at_the_last_common_step():
    row = summary(RECORDS, began=100.0, ended=121.0)
    shorter = summary([*RECORDS[:4], training(75, 120.0, 900.0, 2.2)], began=100.0, ended=121.0)
    rows = dict(zip(WAYS, (row, shorter), strict=False))
    assert agreement(rows) == pytest.approx(0.1)
    found = {"recipe": "r.toml", "rows": rows, "difference": 0.1, "environment": {"gpu": "none"}}
    text = table(found)
    assert mentions(text, "train | 21 | 10 | 19 | 100 | 1,100 | 3.5 | 30 |", "captured")


def test_table_of_seeds_has_the_mean_test_score():
    row = summary(RECORDS, began=100.0, ended=121.0)
    rows = {"seed 1": {**row, "test BLEU": 40.0}, "seed 2": {**row, "test BLEU": 42.0}}
    text = table({"recipe": "r.toml", "rows": rows, "difference": 0.0, "environment": {"gpu": "none"}})
    assert "| seed 2 | 21 | 10 | 19 | 100 | 1,100 | 3.5 | 30 | 42 |" in text and "mean 41.00" in text


def test_torchrun_starts_the_same_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started: list[list[str]] = []

    class Process:
        returncode = 0

        def __init__(self, command: list[str], **_: Any):
            started.append(command)
            (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in RECORDS))

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def communicate(self, timeout: float | None = None) -> tuple[str, str]:
            return "", ""

    monkeypatch.setattr(training_run.subprocess, "Popen", Process)
    for name in ("regard train", "torchrun, one process"):
        row = training_run.trained(Path("r.toml"), tmp_path, WAYS[name], "cuda", 5.0)
        assert row["tokens/s"] == 1100
    alone, together = started
    assert together[-len(alone[3:]) :] == alone[3:] and "torch.distributed.run" in together
