"""CUDA graphs of training steps, on a fake device: equal gradients, limits, and fallbacks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.data.batch import Batch, tensors_in
from regard.fast.captured.graphs import Uncaptured, capture_chosen, shape_of
from regard.fast.captured.steps import CapturedSteps, DeviceUpdate
from regard.fast.twins import Twins
from regard.models import build_model
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.language import LanguageTask
from regard.training.gradients import Gradients
from regard.training.losses import cross_entropy
from regard.training.progress import StepRequest
from regard.training.settings import Training
from regard.training.task import Capture, Loss, Speed
from tests.facts import facts
from tests.models.variants import SIZE, VARIANTS
from tests.training.fake_graphs import FakeGraphs, choose, install
from tests.training.test_compiled import Uneven
from tests.training.toys import Numbers, Toy, bits, last, records, trainer

RECURRENT = [name for name, (kind, _) in VARIANTS.items() if kind != "transformer"]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    return install(monkeypatch)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_losses_do_not_synchronise(name: str):
    """Reading a value raises on the meta device, so code that would synchronise on CUDA fails here."""
    kind, options = VARIANTS[name]
    model = build_model(kind, SIZE, SIZE, **options, dropout=0.1).to("meta").train()
    batch = Batch.collate([[4, 5, 6], [7]], [[4], [5, 6]]).to("meta")
    with Twins(model):  # as the trainer does
        total, _ = cross_entropy(model(batch), batch.labels, 0.1)
    total.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_reading_a_value_raises_on_the_meta_device():
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.zeros(2, device="meta").any())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_captured_run_has_the_same_bits(tmp_path: Path, device: FakeGraphs, accumulate: int, monkeypatch):
    trainer(tmp_path / "captured", Uneven(4, shapes=4), steps=8, accumulation_steps=accumulate).run()
    updates = int(accumulate > 1)  # with several batches, the update is a graph of its own
    assert device.captured == 4 + updates and device.replayed == 8 * (accumulate + updates)
    choose(monkeypatch, False)
    trainer(tmp_path / "plain", Uneven(4, shapes=4), steps=8, accumulation_steps=accumulate).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_run_with_a_carried_state_has_the_same_bits(
    tmp_path: Path, device: FakeGraphs, accumulate: int, monkeypatch
):
    (tmp_path / "text").write_text("the cat sat on a mat\n" * 24)
    data = {"train_file": [str(tmp_path / "text")], "tokenizer": "word", "window": 5, "streams": 4}
    settings = {
        "data": {**data, "valid_file": data["train_file"]},
        "model": {"name": "lstm", "width": 6, "depth": 2, "dropout": 0.3},
        "training": {"steps": 14, "accumulation_steps": accumulate, "learning_rate": 0.01},
        "evaluation": {"samples": 0},
    }
    for folder, captured in (("captured", True), ("plain", False)):
        choose(monkeypatch, captured)
        train_run(
            LanguageTask,
            settings,
            tmp_path / folder,
            machine=Machine("cpu", 1),
            console=Console(quiet=True),
        )
    # One graph for the first batch of an epoch, one for those that continue it, one for the short last one.
    updates = int(accumulate > 1)
    assert device.captured == 3 + updates and device.replayed == 14 * (accumulate + updates)
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")
    assert last(tmp_path / "captured").has("task")


def test_random_numbers_do_not_depend_on_earlier_captures(tmp_path: Path, device: FakeGraphs):
    trainer(tmp_path, Toy(dropout=0.5), steps=6, save_every=3, keep=9).run()
    whole = bits(tmp_path)
    while last(tmp_path).step > 3:
        shutil.rmtree(last(tmp_path).path)
    again = trainer(tmp_path, Toy(dropout=0.5), steps=6)
    checkpoint = again.resume()
    assert checkpoint is not None and checkpoint.step == 3
    again.run()
    assert device.captured == 2 and bits(tmp_path) == whole


def test_least_recently_used_graph_is_dropped(tmp_path: Path, device: FakeGraphs):
    trainer(tmp_path, Uneven(4, shapes=2), steps=8).run()
    assert device.captured == 8  # four shapes in turn, two graphs: every step captures


def test_failed_capture_runs_eagerly_and_is_logged_once(tmp_path: Path, device: FakeGraphs):
    device.refuses = True
    trainer(tmp_path / "refused", Toy(dropout=0.5), steps=4, log=True).run()
    (record,) = records(tmp_path / "refused", "capture")
    assert record["text"].endswith("RuntimeError: operation not permitted when stream is capturing")
    device.refuses = False
    trainer(tmp_path / "taken", Toy(dropout=0.5), steps=4).run()
    assert bits(tmp_path / "refused") == bits(tmp_path / "taken")


def test_failed_capture_keeps_the_gradients_accumulated_so_far(
    tmp_path: Path, device: FakeGraphs, monkeypatch: pytest.MonkeyPatch
):
    task = Uneven(4, shapes=4)

    def fail(count: int) -> None:
        if count == 8:  # each shape runs three times; call 8 is in the third batch of step 1
            raise RuntimeError("no memory is left")

    task.on_loss = fail
    trainer(tmp_path / "captured", task, steps=4, accumulation_steps=3).run()
    assert device.replayed == 2
    choose(monkeypatch, False)
    trainer(tmp_path / "plain", Uneven(4, shapes=4), steps=4, accumulation_steps=3).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


def test_error_in_the_loss_is_raised(tmp_path: Path, device: FakeGraphs):
    task = Toy()

    def fail(count: int) -> None:
        raise ValueError("no such point")

    task.on_loss = fail
    with pytest.raises(ValueError, match="point"):
        trainer(tmp_path, task, steps=2).run()


@pytest.mark.parametrize(
    ("settings", "device", "world", "chosen"),
    [
        ({}, "cuda", 1, (True, "")),
        ({"capture": "auto"}, "cuda", 1, (True, "")),
        ({"capture": False}, "cuda", 1, (False, "")),
        ({"capture": "auto"}, "cpu", 1, (False, "")),
        ({"capture": True}, "cuda", 1, (True, "")),
        ({"capture": True}, "cpu", 1, (False, "not cpu")),
        ({"capture": "auto", "compile": True}, "cuda", 1, (True, "")),
        ({"capture": "auto"}, "cuda", 2, (True, "")),
        ({"capture": True}, "cuda", 2, (True, "")),
        ({"capture": True, "compile": True}, "cuda", 2, (False, "training.compile = false")),
    ],
)
def test_when_steps_are_captured(settings: dict[str, Any], device: str, world: int, chosen: tuple[bool, str]):
    captured, reason = capture_chosen(Training(**settings), "", device, world)
    assert captured == chosen[0]
    assert chosen[1] in reason and bool(reason) == bool(chosen[1])


def test_regard_fast_0_switches_capture_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_FAST", "0")
    captured, reason = capture_chosen(Training(), "", "cuda")
    assert not captured and "REGARD_FAST=0" in reason
    assert capture_chosen(Training(), "", "cpu") == Capture(False)


def test_task_can_give_a_reason_against_capture(tmp_path: Path):
    captured, text = capture_chosen(Training(capture="auto"), "it is watched", "cuda")
    assert not captured and "watched" in text
    task = Toy()
    task.speed = Speed(uncapturable="it is watched")
    trainer(tmp_path, task, steps=1, capture=True, log=True).run()
    (record,) = records(tmp_path, "capture")
    assert "not captured" in record["text"]


def test_unsupported_capture_is_logged(tmp_path: Path):
    trainer(tmp_path, steps=1, capture=True, log=True).run()
    (record,) = records(tmp_path, "capture")
    assert "not captured" in record["text"] and "cpu" in record["text"]


def test_tensors_in_tuples_and_dataclasses_are_found():
    x, y = torch.zeros(1), torch.ones(2)
    assert [id(each) for each in tensors_in((Numbers(x, y), None))] == [id(x), id(y)]


@dataclass(frozen=True)
class Weighed(Numbers):
    """A batch with a Python number besides its tensors."""

    weight: float = 1.0

    def to(self, device: Any) -> Weighed:
        return self


class Listed(list[Tensor]):
    """A batch as a list, in which tensors are not searched."""

    def to(self, device: Any) -> Listed:
        return self


class Held(Toy):
    """A toy task whose batches are converted by `hold`, and converted back by `open` before the loss."""

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
def test_values_other_than_tensors_are_not_constant_in_graphs(
    tmp_path: Path, device: FakeGraphs, hold: Any, open: Any, captured: int, monkeypatch: pytest.MonkeyPatch
):
    trainer(tmp_path / "captured", Held(hold, open), steps=5).run()
    assert device.captured == captured
    choose(monkeypatch, False)
    trainer(tmp_path / "plain", Held(hold, open), steps=5).run()
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


def test_batch_on_another_device_is_not_captured():
    with pytest.raises(Uncaptured, match=facts("cpu")):
        shape_of(Numbers(torch.zeros(1), torch.zeros(1)), torch.device("cuda"))


def test_device_other_than_the_current_one_is_not_captured(monkeypatch: pytest.MonkeyPatch):
    """The graph would record the current device and be empty; each replay would repeat the first batch."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    task = Toy()
    cpu = torch.device("cpu")
    update = DeviceUpdate(torch.optim.SGD(task.model.parameters(), fused=True), None, cpu)
    captured = CapturedSteps(Gradients(task, device=cpu, captured=True), update, most=2)
    captured._device = torch.device("cuda", 1)
    with pytest.raises(Uncaptured, match="cuda:1"):
        captured.take(StepRequest(1, [next(task.batches(0))], 1, 0.1))


def test_warm_up_steps_do_not_change_batch_norm_statistics(
    tmp_path: Path, device: FakeGraphs, monkeypatch: pytest.MonkeyPatch
):
    weights = []
    for chosen in (True, False):
        choose(monkeypatch, chosen)
        task = Toy()
        task.model.insert(1, nn.BatchNorm1d(8))
        trainer(tmp_path / str(chosen), task, steps=3).run()
        weights.append(bits(tmp_path / str(chosen)))
    assert device.captured == 1 and weights[0] == weights[1]
