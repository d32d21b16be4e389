"""Timing on a CUDA device, with a fake clock in place of CUDA events."""

from __future__ import annotations

import pytest
import torch

from benchmarks import device


class Stand:
    """A fake device: calls take a set time, replays take 2 ms; `seen` records what ran."""

    def __init__(self) -> None:
        self.launch, self.seen = 0.5, list[str]()

    def run(self) -> None:
        self.seen.append("launch")

    def replay(self) -> None:
        self.seen.append("replay")

    def elapsed(self, run) -> float:
        run()
        return 2.0 if self.seen[-1] == "replay" else self.launch


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand()
    monkeypatch.setattr(device, "_elapsed", stand.elapsed)
    monkeypatch.setattr(device, "waits", lambda run: False)
    monkeypatch.setattr(device, "graphed", lambda run, repeats: stand.replay)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return stand


def test_short_function_is_captured(stand: Stand):
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "graph" and timing.median == 2.0 / 4  # four runs in a capture


def test_long_function_is_not_captured(stand: Stand):
    stand.launch = device.LONG
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched" and timing.median == device.LONG and "replay" not in stand.seen


def test_failed_capture_is_timed_uncaptured_and_noted(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    def graphed(run, repeats):
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(device, "graphed", graphed)
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched (RuntimeError when captured)" and timing.median == 0.5 / 4


def test_function_that_synchronises_is_not_captured(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "waits", lambda run: True)
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched (it waits for the device)" and "replay" not in stand.seen
