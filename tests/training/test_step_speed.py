"""Step speed: timing leaves no files, and a single slow step does not count."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from regard.training import loop as step_speed
from regard.training.loop import tokens_per_second
from regard.training.settings import Training
from tests.training.toys import Toy


def test_timer_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step_speed, "SECONDS", 0.0)
    assert tokens_per_second(Toy(), Training(steps=5), torch.device("cpu")) > 0
    assert list(tmp_path.iterdir()) == []


def test_single_slow_step_does_not_change_the_measured_speed(monkeypatch: pytest.MonkeyPatch):
    task, now = Toy(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(count: int) -> None:
        now[0] += 9.0 if count == 3 else 0.25

    task.on_loss = passes
    monkeypatch.setattr(step_speed, "SECONDS", 10.0)
    assert tokens_per_second(task, Training(steps=5), torch.device("cpu")) == pytest.approx(4 / 0.25)
