"""A collapse of the training speed is reported once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.training.progress import Slowdown
from tests.training.test_budget import Clock, timed
from tests.training.toys import records


@pytest.mark.parametrize(("slow", "warnings"), [(2.0, 0), (20.0, 1)])
def test_slowdown_is_reported_once(tmp_path: Path, slow: float, warnings: int):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=1.0, steps=60)
    run.task.on_loss = lambda count: clock.passes(1.0 if count <= 20 else slow)  # type: ignore[attr-defined]
    run.run()
    texts = [each["text"] for each in records(tmp_path, "slowdown")]
    assert len(texts) == warnings
    (threads,) = records(tmp_path, "threads")
    assert f"{torch.get_num_threads()} thread" in threads["text"]


def test_slow_first_steps_and_single_slow_steps_are_not_reported():
    slowdown = Slowdown("tokens")
    seconds = [9.0, 9.0, 9.0, *([1.0] * 20), 50.0, *([1.0] * 20)]
    assert not any(slowdown.add_step(100, each, threads=1) for each in seconds)


@pytest.mark.parametrize("threads", [1, 2])
def test_warning_suggests_fewer_threads_if_there_are_several(threads: int):
    slowdown = Slowdown("tokens")
    reports = [slowdown.add_step(100, each, threads) for each in [1.0] * 20 + [9.0] * 20]
    (report,) = filter(None, reports)
    assert "11 tokens/s, 100 at" in report and ("--threads 1" in report) == (threads > 1)
