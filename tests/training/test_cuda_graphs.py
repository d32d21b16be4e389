"""Captured steps: the same gradients, whatever was seen before; and losses that can be captured."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.models import build_model
from regard.training import cuda_graphs
from regard.training.cuda_graphs import Captured, Uncaptured, capture_chosen, shape_of, tensors_in
from regard.training.losses import cross_entropy
from regard.training.settings import Training
from regard.training.task import Loss
from tests.models.variants import SIZE, VARIANTS
from tests.training.test_compiled import Uneven
from tests.training.toys import Numbers, Toy, bits, last, records, trainer

RECURRENT = [name for name, (kind, _) in VARIANTS.items() if kind != "transformer"]


class Device:
    """What stands in for CUDA graphs: a replay runs the step again, into the tensors of the first time."""

    def __init__(self) -> None:
        self.captured, self.replayed, self.refuses = 0, 0, False

    def recorded(
        self, step: Callable[[], Any], device: object, pool: object
    ) -> tuple[Callable[[], None], Any]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1
        step()  # a warm-up
        made = step()

        def replay() -> None:
            self.replayed += 1
            for place, found in zip(_results(made), _results(step()), strict=True):
                place.copy_(found)

        return replay, made


def _results(made: Any) -> list[Tensor]:
    loss, _ = made
    return [loss.total, *loss.shown.values()]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(cuda_graphs, "recorded", made.recorded)
    monkeypatch.setattr(cuda_graphs, "new_pool", lambda: None)
    monkeypatch.setattr(cuda_graphs, "release_generator", lambda device: None)
    monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_: (True, ""))
    return made


@pytest.mark.parametrize("name", RECURRENT)
def test_no_recurrent_loss_asks_the_device_for_a_number(name: str):
    """A tensor without numbers, on meta, cannot be read: what waits for the device fails there."""
    kind, options = VARIANTS[name]
    model = build_model(kind, SIZE, SIZE, **options, dropout=0.1).to("meta").train()
    batch = Batch.collate([[4, 5, 6], [7]], [[4], [5, 6]]).to("meta")
    total, _ = cross_entropy(model(batch), batch.labels, 0.1)
    total.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_what_does_ask_is_found_so():
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.zeros(2, device="meta").any())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_captured_run_is_the_ordinary_one(tmp_path: Path, device: Device, accumulate: int, monkeypatch):
    trainer(tmp_path / "captured", Uneven(4, shapes=4), steps=8, accumulation_steps=accumulate).run()
    assert device.captured == 4 and device.replayed == 8 * accumulate
    monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_: (False, ""))
    trainer(tmp_path / "plain", Uneven(4, shapes=4), steps=8, accumulation_steps=accumulate).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


def test_chance_does_not_depend_on_what_was_captured_before(tmp_path: Path, device: Device):
    trainer(tmp_path, Toy(dropout=0.5), steps=6, save_every=3, keep=9).run()
    whole = bits(tmp_path)
    while last(tmp_path).step > 3:
        shutil.rmtree(last(tmp_path).path)
    again = trainer(tmp_path, Toy(dropout=0.5), steps=6)
    found = again.resume()
    assert found is not None and found.step == 3
    again.run()
    assert device.captured == 2 and bits(tmp_path) == whole


def test_graphs_are_few_and_the_one_unused_longest_goes(tmp_path: Path, device: Device):
    trainer(tmp_path, Uneven(4, shapes=2), steps=8).run()
    assert device.captured == 8  # of four shapes that come in turn, none is there again


def test_what_cannot_be_captured_runs_as_it_is_and_is_said_once(tmp_path: Path, device: Device):
    device.refuses = True
    trainer(tmp_path / "refused", Toy(dropout=0.5), steps=4, log=True).run()
    (said,) = records(tmp_path / "refused", "capture")
    assert said["text"].endswith("RuntimeError: operation not permitted when stream is capturing")
    device.refuses = False
    trainer(tmp_path / "taken", Toy(dropout=0.5), steps=4).run()
    assert bits(tmp_path / "refused") == bits(tmp_path / "taken")


def test_a_capture_that_fails_within_a_step_keeps_what_was_added(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    task = Uneven(4, shapes=4)

    def fail(count: int) -> None:
        if count == 8:  # each shape is run three times: this is the third of the first step
            raise RuntimeError("no memory is left")

    task.on_loss = fail
    trainer(tmp_path / "captured", task, steps=4, accumulation_steps=3).run()
    assert device.replayed == 2
    monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_: (False, ""))
    trainer(tmp_path / "plain", Uneven(4, shapes=4), steps=4, accumulation_steps=3).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


def test_an_error_of_the_loss_itself_is_raised(tmp_path: Path, device: Device):
    task = Toy()

    def fail(count: int) -> None:
        raise ValueError("no such point")

    task.on_loss = fail
    with pytest.raises(ValueError, match="no such point"):
        trainer(tmp_path, task, steps=2).run()


@pytest.mark.parametrize(
    ("settings", "device", "world", "small", "chosen"),
    [
        ({}, "cuda", 1, True, (True, "")),
        ({"capture": "auto"}, "cuda", 1, True, (True, "")),
        ({"capture": False}, "cuda", 1, True, (False, "")),
        ({"capture": "auto"}, "cuda", 1, False, (False, "")),
        ({"capture": "auto"}, "cpu", 1, True, (False, "")),
        ({"capture": True}, "cuda", 1, False, (True, "")),
        ({"capture": True}, "cpu", 1, True, (False, "not cpu")),
        ({"capture": "auto", "compile": True}, "cuda", 1, True, (False, "training.compile")),
        ({"capture": "auto"}, "cuda", 2, True, (False, "exchange gradients")),
    ],
)
def test_who_is_captured(
    settings: dict[str, Any], device: str, world: int, small: bool, chosen: tuple[bool, str]
):
    task = Toy()
    task.small_steps = small
    found, said = capture_chosen(Training(**settings), task, device, world)
    assert found == chosen[0]
    assert chosen[1] in said and bool(said) == bool(chosen[1])


def test_a_task_can_say_why_not():
    task = Toy()
    task.small_steps, task.uncapturable = True, "it is watched"
    captured, text = capture_chosen(Training(capture="auto"), task, "cuda")
    assert not captured and "it is watched" in text


def test_what_is_asked_for_and_cannot_be_is_said(tmp_path: Path):
    trainer(tmp_path, steps=1, capture=True, log=True).run()
    (said,) = records(tmp_path, "capture")
    assert "not captured" in said["text"] and "cpu" in said["text"]


def test_tensors_are_found_in_tuples_and_dataclasses():
    x, y = torch.zeros(1), torch.ones(2)
    assert [id(each) for each in tensors_in((Numbers(x, y), None))] == [id(x), id(y)]


@dataclass(frozen=True)
class Weighed(Numbers):
    """Points with a number of their own, which is no tensor."""

    weight: float = 1.0

    def to(self, device: Any) -> Weighed:
        return self


class Listed(list[Tensor]):
    """Points in a list, which is not looked into."""

    def to(self, device: Any) -> Listed:
        return self


class Held(Toy):
    """A toy whose batches are made anew by `hold`, and opened again before the loss by `open`."""

    def __init__(self, hold: Callable[[Numbers, int], Any], open: Callable[[Any], tuple[Tensor, Tensor]]):
        super().__init__()
        self.hold, self.open = hold, open

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        for number, batch in enumerate(super().batches(epoch, start), start):
            yield self.hold(batch, number)

    def count(self, batch: Any) -> int:
        return self.each

    def loss(self, batch: Any) -> Loss:
        x, y = self.open(batch)
        return super().loss(Numbers(x, y))


@pytest.mark.parametrize(
    ("hold", "open", "captured"),
    [
        (lambda batch, number: Weighed(batch.x, batch.y, number % 2), lambda it: (it.x * it.weight, it.y), 2),
        (lambda batch, number: Listed((batch.x, batch.y)), lambda it: (it[0], it[1]), 0),
    ],
    ids=["a number", "a list"],
)
def test_what_is_no_tensor_is_never_frozen(
    tmp_path: Path, device: Device, hold: Any, open: Any, captured: int, monkeypatch: pytest.MonkeyPatch
):
    trainer(tmp_path / "captured", Held(hold, open), steps=5).run()
    assert device.captured == captured
    monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_: (False, ""))
    trainer(tmp_path / "plain", Held(hold, open), steps=5).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


def test_a_batch_that_is_elsewhere_is_not_captured():
    with pytest.raises(Uncaptured, match="a tensor on cpu"):
        shape_of(Numbers(torch.zeros(1), torch.zeros(1)), torch.device("cuda"))


def test_another_device_than_the_current_one_is_not_captured(monkeypatch: pytest.MonkeyPatch):
    """The graph would be of the current one, and empty: the first batch would be learned for ever."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    task = Toy()
    captured = Captured(task.loss, task.model, torch.device("cpu"), most=2)
    captured._device = torch.device("cuda", 1)
    with pytest.raises(Uncaptured, match="cuda:1 is not the current device"):
        captured.run(next(task.batches(0)), seed=0, factor=1.0)


def test_steps_before_a_capture_move_no_running_mean(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    found = []
    for chosen in (True, False):
        monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_, chosen=chosen: (chosen, ""))
        task = Toy()
        task.model.insert(1, nn.BatchNorm1d(8))
        trainer(tmp_path / str(chosen), task, steps=3).run()
        found.append(bits(tmp_path / str(chosen)))
    assert device.captured == 1 and found[0] == found[1]
