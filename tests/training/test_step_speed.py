"""Step speed: timing leaves no files, and the fastest number of threads is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.training import loop as step_speed
from regard.training.loop import fastest_threads, tokens_per_second
from regard.training.settings import Training
from tests.training.toys import Toy


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads after each test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize(
    ("cost", "best"),
    [
        ({1: 8, 2: 4, 4: 2, 6: 1}, 6),
        ({1: 1, 2: 500, 4: 500, 6: 500}, 1),
        ({1: 4, 2: 2, 4: 2, 6: 3}, 2),
        ({1: 1, 2: 0.99, 4: 2, 6: 2}, 1),
    ],
)
def test_fastest_number_of_threads_is_set(cost: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_speed, "operation_seconds", lambda: cost[torch.get_num_threads()])
    assert fastest_threads(6) == best == torch.get_num_threads()


def test_operation_is_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_speed, "TURN_SECONDS", 0.01)
    assert 0 < step_speed.operation_seconds() <= 10
