"""The number of CPU threads: the fastest one, for training and for every command that runs a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from regard.cli.open_runs import set_threads
from regard.compare.study_context import cpu_threads as study_threads
from regard.runs import cpu_threads
from regard.runs.cpu_threads import choose_threads, fastest_threads
from regard.runs.prepare_run import Machine
from regard.runs.prepare_run import set_threads as set_training_threads
from regard.training.distributed import Processes

BUSY = {1: 1.0, 2: 70.0, 4: 70.0, 6: 70.0}
"""Seconds of an operation by number of threads, while other programs use the cores."""


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start each test with four threads and without OMP_NUM_THREADS; restore the threads after it."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def pretend(monkeypatch: pytest.MonkeyPatch, cost: dict[int, float]) -> list[float]:
    """Replace the measurement of operations; return the list of the seconds that were requested."""
    requested: list[float] = []

    def seconds(least: float) -> float:
        requested.append(least)
        return cost[torch.get_num_threads()]

    monkeypatch.setattr(cpu_threads, "operation_seconds", seconds)
    return requested


@pytest.mark.parametrize(
    ("cost", "best"),
    [
        ({1: 8, 2: 4, 4: 2, 6: 1}, 6),
        (BUSY, 1),
        ({1: 4, 2: 2, 4: 2, 6: 3}, 2),
        ({1: 1, 2: 0.99, 4: 2, 6: 2}, 1),
    ],
)
def test_fastest_number_of_threads_is_set(cost: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, cost)
    assert fastest_threads(6) == best == torch.get_num_threads()


def test_operation_is_timed():
    assert 0 < cpu_threads.operation_seconds(0.01) <= 10


def test_single_slow_turn_does_not_count(monkeypatch: pytest.MonkeyPatch):
    times = iter([9.0, 1.0, 2.0, 1.0, 2.0, 9.0])  # with one and two threads, in turns
    monkeypatch.setattr(cpu_threads, "operation_seconds", lambda least: next(times))
    assert fastest_threads(2, turns=3) == 2


def test_decoding_and_training_notice_a_busy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """A command measures for a shorter time than training."""
    requested = pretend(monkeypatch, BUSY)
    set_threads({"threads": None, "device": "cpu"})
    assert torch.get_num_threads() == 1
    short = sum(requested)
    torch.set_num_threads(4)
    set_training_threads(Machine("cpu"), tmp_path, "cpu", Processes())
    assert torch.get_num_threads() == 1 and sum(requested) - short > 2 * short > 0


def test_study_restores_the_threads(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, BUSY)
    with study_threads("cpu", None):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("device", "threads", "variable", "expected"),
    [("cpu", 2, "", 2), ("cuda", 2, "", 2), ("cuda", None, "", 4), ("cpu", None, "4", 4)],
    ids=["requested", "requested beside a GPU", "GPU", "OMP_NUM_THREADS"],
)
def test_nothing_is_measured(
    device: str, threads: int | None, variable: str, expected: int, monkeypatch: pytest.MonkeyPatch
):
    requested = pretend(monkeypatch, BUSY)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    choose_threads(device, threads)
    assert torch.get_num_threads() == expected and not requested
