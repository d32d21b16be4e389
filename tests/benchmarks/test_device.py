"""How a run on a device is timed, with a clock that stands in for its events."""

from __future__ import annotations

import pytest
import torch

from benchmarks import device


class Stand:
    """Launches that take so long, replays that take 2 ms, and what was run."""

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


def test_what_is_short_is_captured(stand: Stand):
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "graph" and timing.median == 2.0 / 4  # four runs in a capture


def test_what_is_long_is_launched(stand: Stand):
    stand.launch = device.LONG
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched" and timing.median == device.LONG and "replay" not in stand.seen


def test_what_cannot_be_captured_is_launched_and_says_so(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    def graphed(run, repeats):
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(device, "graphed", graphed)
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched (RuntimeError when captured)" and timing.median == 0.5 / 4


def test_what_waits_for_the_device_is_not_captured(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "waits", lambda run: True)
    timing = device.timed(stand.run, 0.0)
    assert timing.how == "launched (it waits for the device)" and "replay" not in stand.seen
