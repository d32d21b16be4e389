"""Speed: steps are timed without leaving anything, and fewer threads are used where they are faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from regard.training import speed
from regard.training.settings import Training
from regard.training.speed import Rehearsal, fastest_threads
from tests.training.toys import Toy


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """The numbers of threads that were set, one after the other; the number before is restored."""
    before = torch.get_num_threads()
    yield []
    torch.set_num_threads(before)


def test_a_rehearsal_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    rehearsal = Rehearsal(Toy(), Training(steps=5), torch.device("cpu"), tmp_path / "scratch")
    assert rehearsal.tokens_per_second() > 0 and rehearsal.step() == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cost", "best"), [({8: 1, 4: 4}, 8), ({8: 9, 4: 5, 2: 2, 1: 1}, 1), ({8: 9, 4: 1, 2: 3}, 4)]
)
def test_the_fastest_number_of_threads_is_set(
    cost: dict[int, int], best: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def step() -> int:
        threads.append(torch.get_num_threads())
        now[0] += cost[torch.get_num_threads()]
        return 1

    assert fastest_threads(step, 8) == best == torch.get_num_threads()
    assert threads[0] == 8


def test_a_slow_step_does_not_count(monkeypatch: pytest.MonkeyPatch):
    now, durations = [0.0], iter([9.0, 0.1, 0.1, 0.1, 0.1])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(speed, "LEAST", 5)

    def passes() -> Callable[[], int]:
        def step() -> int:
            now[0] += next(durations)
            return 2

        return step

    assert speed._median_seconds(passes()) == pytest.approx(0.05)
