"""Batches that a thread prepares ahead: same batches, positions, errors and weights as without the thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.training import loop as batch_stream
from regard.training.loop import BatchStream, Position
from regard.training.task import Speed
from tests.training.toys import Numbers, Toy, bits, trainer


@pytest.fixture(params=[1, 3])
def ahead(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(batch_stream, "AHEAD", {"cpu": request.param})


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "batches"]


class Ahead(Toy):
    """A toy task whose batches a thread may prepare ahead. Batch number `wrong` raises an error."""

    speed = Speed(ahead=True)

    def __init__(self, wrong: int | None = None, **options: Any):
        super().__init__(**options)
        self.wrong, self.read, self.closed = wrong, 0, 0

    def batches(self, epoch: int, start: int = 0) -> Iterator[Numbers]:
        for batch in super().batches(epoch, start):
            if self.read == self.wrong:
                raise ValueError("no such line")
            self.read += 1
            yield batch

    def close(self) -> None:
        assert not threads()  # nothing calls batches() any more
        self.closed += 1


def test_batches_and_positions_are_those_without_a_thread(ahead: None):
    plain, threaded = (BatchStream(Ahead(), Position(1, 4)) for _ in range(2))
    threaded.start(torch.device("cpu"))
    for number in range(9):
        assert next(threaded).x.equal(next(plain).x)
        assert threaded.position == plain.position
        if number == 5:  # after close(), the batches that were prepared ahead are computed again
            threaded.close()
            assert not threads()
            threaded.start(torch.device("cpu"))
    assert plain.position == Position(3, 1)
    with threaded.paused():
        assert threads()
    threaded.close()
    assert not threads()


def test_run_has_the_same_bits_and_the_thread_ends(tmp_path: Path, ahead: None):
    task = Ahead(dropout=0.5)
    first = trainer(tmp_path / "ahead", task, steps=7, schedule="constant")
    first.run()
    assert task.read > 7 and not threads() and task.closed == 1
    again = trainer(tmp_path / "ahead", Ahead(dropout=0.5), steps=16, schedule="constant")
    again.resume()
    again.run()
    trainer(tmp_path / "plain", Toy(dropout=0.5), steps=16, schedule="constant").run()
    assert bits(tmp_path / "ahead") == bits(tmp_path / "plain")


def test_error_is_raised_at_its_batch(tmp_path: Path, ahead: None):
    run = trainer(tmp_path, Ahead(wrong=5), evaluate_every=99)
    with pytest.raises(ValueError, match="such"):
        run.run()
    assert run.progress.step == 5 and not threads()


def test_tasks_that_do_not_allow_it_use_no_thread(tmp_path: Path, ahead: None):
    task = Toy()
    found = []
    task.on_loss = lambda count: found.append(threads())
    trainer(tmp_path, task, steps=3).run()
    assert found and not any(found)
