"""Captured steps on a fake device: weights, records and errors are those of plain steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.fast.captured.graphs import Uncaptured
from regard.tasks.translation import Machine, train_translation
from regard.training import loop as batch_stream
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.interrupts import Interruption
from regard.training.progress import LATE, NonFinite, StepDone, StepLate, StepRequest, UnreadSteps
from regard.training.task import Capture
from tests.training.fake_graphs import FakeGraphs, choose, install
from tests.training.test_compiled import Uneven
from tests.training.test_nonfinite_steps import task_with_bad_point
from tests.training.toys import Toy, bits, last, records, trainer


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    return install(monkeypatch)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "max_grad_norm": 0.5},
        {"optimizer": "sgd", "max_grad_norm": 0.0},
        {"weight_decay": 0.1, "max_grad_norm": 0.1, "precision": "bfloat16"},
    ],
)
def test_update_in_the_graph_has_the_same_bits(
    tmp_path: Path,
    graphs: FakeGraphs,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    accumulate: int,
):
    for name in ("captured", "plain"):
        choose(monkeypatch, name == "captured")
        task = Uneven(3, shapes=3)
        trainer(tmp_path / name, task, steps=20, accumulation_steps=accumulate, **settings).run()
    assert graphs.replayed > 0
    assert bits(tmp_path / "captured") == bits(tmp_path / "plain")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_moving_average_and_log_are_those_of_plain_steps(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch: pytest.MonkeyPatch, accumulate: int
):
    logged = []
    for name in ("captured", "plain"):
        choose(monkeypatch, name == "captured")
        run = trainer(tmp_path / name, Toy(dropout=0.3), log=True, steps=21, ema=0.9, evaluate_every=9,
                      save_every=4, accumulation_steps=accumulate)  # fmt: skip
        run.run()
        kept = ("step", "loss", "norm", "rate", "bleu", "best")
        kinds = ("training", "evaluation")
        lines = [each for kind in kinds for each in records(tmp_path / name, kind)]
        logged.append([{key: each[key] for key in kept if key in each} for each in lines])
        assert [each["step"] for each in records(tmp_path / name, "training")] == list(range(1, 22))
    assert len(logged[0]) == len(logged[1])
    for captured, plain in zip(*logged, strict=True):
        assert captured == pytest.approx(plain, rel=1e-5)
    captured, plain = (last(tmp_path / name) for name in ("captured", "plain"))
    assert captured.tensors("raw")["0.weight"].equal(plain.tensors("raw")["0.weight"])
    for name, average in plain.tensors("weights").items():
        torch.testing.assert_close(captured.tensors("weights")[name], average, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", ["nan", "inf", "gradient"])
def test_nonfinite_step_is_found_late_as_in_a_plain_run(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch: pytest.MonkeyPatch, bad: str, accumulate: int
):
    step = 4 // accumulate
    messages, weights = [], []
    for name in ("captured", "plain"):
        choose(monkeypatch, name == "captured")
        task, folder = task_with_bad_point(bad, dropout=0.5), tmp_path / name
        folder.mkdir()
        run = trainer(folder, task, log=True, ema=0.5, accumulation_steps=accumulate, evaluate_every=99)
        with pytest.raises(NonFinite) as raised:
            run.run()
        messages.append((str(raised.value), records(folder, "nonfinite")[0]["step"], run.progress.step))
        assert run.average is not None
        weights.append((run.model[0].weight.detach(), run.average.tensors()["0.weight"]))
    assert messages[0] == messages[1] and messages[0][1:] == (step, step)
    assert graphs.replayed > (4 if accumulate == 1 else 6)  # later steps were launched before it was found
    assert weights[0][0].equal(weights[1][0])
    torch.testing.assert_close(weights[0][1], weights[1][1])


def test_resumed_translation_run_has_the_same_bits(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch: pytest.MonkeyPatch
):
    """Subwords are sampled in processes, a thread prepares batches ahead, and steps are captured."""
    monkeypatch.setattr(batch_stream, "AHEAD", {"cpu": 3})
    monkeypatch.setattr("regard.training.length_buckets.capture_chosen", lambda *_: Capture(True, ""))
    settings = {
        "data": {
            "built_in": "korean",
            "pairs": 90,
            "held_out": 2,
            "tokenizer": "bpe",
            "subword_sampling": 0.2,
        },
        "model": {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1, "dropout": 0.1},
        "training": {
            "optimizer": "adamw",
            "batch_tokens": 200,
            "steps": 16,
            "ema": 0.9,
            "save_every": 5,
            "keep": 9,
        },
        "evaluation": {"sentences": 1, "samples": 0},
    }
    place: dict[str, Any] = {"machine": Machine("cpu", 1), "console": Console(quiet=True)}
    train_translation(settings, tmp_path / "whole", **place)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for checkpoint in Checkpoints(tmp_path / "resumed").all():
        if checkpoint.step > 5:
            shutil.rmtree(checkpoint.path)
    train_translation(settings, tmp_path / "resumed", resume=True, **place)
    assert last(tmp_path / "resumed").step == 16 and last(tmp_path / "resumed").state["epoch"] > 0
    assert bits(tmp_path / "whole") == bits(tmp_path / "resumed")


def test_stop_is_obeyed_at_once_and_saves_all_steps(tmp_path: Path, graphs: FakeGraphs):
    task, requested = Toy(), Interruption()

    def stop(count: int) -> None:
        if count == 7:  # the fake executes each step twice for the capture: step 5
            requested.cause = "Ctrl-C"

    task.on_loss = stop
    at = trainer(tmp_path, task, log=True, steps=50).run(requested)
    assert at.step == 5 == last(tmp_path).step
    assert [each["step"] for each in records(tmp_path, "training")] == [1, 2, 3, 4, 5]


def test_durations_are_measured_between_reads():
    """The device takes 1 second per step; the host launches a step in 0.1 seconds."""
    now, finished = [0.0], dict[int, float]()

    class Late(StepLate):
        def wait(self) -> tuple[StepDone, float | None]:
            now[0] = max(now[0], finished[int(self.row)])
            return StepDone({}, 0.0), None

    unread, seconds = UnreadSteps(lambda: now[0]), []
    for step in range(1, 31):
        began, now[0] = now[0], now[0] + 0.1
        finished[step] = 0.1 + step
        unread.add(StepRequest(step, [], 1, 0.0), Late((), torch.tensor(step)), began)
        seconds += [each[-1] for each in unread.read(LATE)]
    assert seconds == pytest.approx([1.1] + [1.0] * (29 - LATE))
    seconds += [each[-1] for each in unread.read()]
    assert len(seconds) == 30 and sum(seconds) == pytest.approx(30.1)
    assert seconds[-LATE:] == pytest.approx([1.0] * LATE)


def test_a_failed_capture_keeps_no_graph(tmp_path: Path, graphs: FakeGraphs):
    run = trainer(tmp_path, Uneven(3, shapes=3), steps=4, accumulation_steps=2)
    steps = run._captured
    assert steps is not None
    run.run()
    assert steps._graphs and steps._update_graphs
    graphs.refuses = True
    with pytest.raises(Uncaptured):
        steps._graph(None, lambda batch: ((), frozenset()))
    assert not steps._graphs and not steps._update_graphs
