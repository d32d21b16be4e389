"""Devices: the one that is asked for, and as many threads as cores are free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.errors import UnknownName
from regard.tasks.translation import devices
from regard.tasks.translation.devices import busy_cores, choose_device, free_cores


def test_a_device_is_one_that_is_there():
    assert choose_device("cpu") == "cpu"
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    assert choose_device("auto") == next(name for name, here in there.items() if here)
    with pytest.raises(UnknownName, match="did you mean 'cuda'"):
        choose_device("cdua")


@pytest.mark.parametrize(("idle", "busy"), [(400, 0.0), (200, 2.0), (0, 4.0)])
def test_cores_at_work_are_those_not_idle(idle: int, busy: float):
    before, after = "cpu  10 0 10 1000 0 0 0 0 0 0", f"cpu  {10 + 400 - idle} 0 10 {1000 + idle} 0 0 0 0 0 0"
    assert busy_cores(before, after, cores=4) == pytest.approx(busy)


def test_where_nothing_is_told_all_cores_are_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(devices, "STATISTICS", tmp_path / "nowhere")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert free_cores(seconds=0.0) == 3
    (tmp_path / "stat").write_text("cpu  1 2 3\n")
    monkeypatch.setattr(devices, "STATISTICS", tmp_path / "stat")
    assert free_cores(seconds=0.0) >= 1
