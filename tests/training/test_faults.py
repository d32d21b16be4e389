"""Faults during training: saved weights are finite, and an error loses no completed step."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import UnknownName
from regard.files.folder_lock import FolderMoved, locked
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes
from regard.training.progress import NonFinite, first_nonfinite
from tests.facts import facts, mentions
from tests.training.toys import Toy, bits, last, records, trainer

SETTINGS = {"steps": 12, "evaluate_every": 5, "ema": 0.9}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_nonfinite_weights_are_never_saved(tmp_path: Path, value: float, ema: float):
    run = trainer(tmp_path, log=True, steps=8, save_every=2, evaluate_every=100, ema=ema)
    real = run.optimizer.step

    def step() -> None:
        real()
        if run.progress.step == 6:
            with torch.no_grad():
                run.model[3].weight[0, 2] = value

    run.optimizer.step = step  # type: ignore[method-assign]
    with pytest.raises(NonFinite) as caught:
        run.run()
    assert re.match(facts("step 6", "3.weight", "step 4"), str(caught.value))
    assert mentions(caught.value, "training.learning_rate", "0.05", "training.max_grad_norm", 1)
    assert [each.step for each in Checkpoints(tmp_path).all()] == [2, 4]
    assert last(tmp_path).step == 4
    assert [each["step"] for each in records(tmp_path, "nonfinite")] == [6]
    resumed = trainer(tmp_path, log=True, steps=8, save_every=2, evaluate_every=100, ema=ema)
    resumed.resume()
    assert resumed.run().ended


def test_diverging_run_saves_only_finite_weights(tmp_path: Path):
    with pytest.raises(NonFinite):
        trainer(tmp_path, learning_rate=1e12, warmup_steps=0, max_grad_norm=0.0, weight_decay=0.1).run()
    assert all(not first_nonfinite(each.tensors("weights")) for each in Checkpoints(tmp_path).all())


@dataclass(frozen=True)
class Others(Processes):
    """A fake of two processes, in which the weights of the other process are not finite."""

    def sum(self, values: Tensor) -> Tensor:
        return values + 1


def test_every_process_raises_if_one_has_nonfinite_weights(tmp_path: Path):
    run = trainer(tmp_path)
    run.processes = Others()
    with pytest.raises(NonFinite, match="another"):
        run.save()
    assert not (tmp_path / "latest").exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_large_values_are_finite(dtype: torch.dtype):
    largest = torch.full((70,), torch.finfo(dtype).max, dtype=dtype)
    others = {"none": torch.zeros(0), "count": torch.tensor([3]), "largest": largest}
    assert first_nonfinite(others) == ""
    for value in (math.nan, -math.inf):
        wrong = largest.clone()
        wrong[60] = value
        assert first_nonfinite({**others, "wrong": wrong}) == "wrong"


def failing(at: int) -> Toy:
    task = Toy(dropout=0.3)

    def fail(count: int) -> None:
        if count == at:
            raise ZeroDivisionError

    task.on_evaluation = fail
    return task


@pytest.mark.parametrize(("at", "step"), [(1, 5), (2, 10), (3, 12)])
def test_error_in_an_evaluation_loses_no_step(tmp_path: Path, at: int, step: int):
    trainer(tmp_path / "whole", Toy(dropout=0.3), log=True, **SETTINGS).run()
    folder = tmp_path / "failed"
    with pytest.raises(ZeroDivisionError):
        trainer(folder, failing(at), log=True, **SETTINGS).run()
    assert last(folder).step == step
    assert last(folder).state["evaluated"] < step and last(folder).state["ended"] == ""
    resumed = trainer(folder, Toy(dropout=0.3), log=True, **SETTINGS)
    checkpoint = resumed.resume()
    assert checkpoint is not None and checkpoint.step == step
    assert resumed.run().ended
    assert bits(folder) == bits(tmp_path / "whole")
    assert (folder / "best").read_text() == (tmp_path / "whole" / "best").read_text()
    logged, expected = (
        [(each["step"], each["loss"]) for each in records(run, "evaluation")]
        for run in (folder, tmp_path / "whole")
    )
    assert logged == expected


def test_evaluation_does_not_rewrite_the_tensors(tmp_path: Path):
    def inode() -> int:
        return (last(tmp_path).path / "weights.safetensors").stat().st_ino

    before: list[int] = []
    task = Toy()
    task.on_evaluation = lambda count: before.append(inode())
    trainer(tmp_path, task, steps=4, evaluate_every=4).run()
    assert before == [inode()]
    assert last(tmp_path).state["evaluated"] == 4
    last(tmp_path).verify()


def test_tensors_are_copied_where_hard_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer(tmp_path / "linked", steps=4, evaluate_every=2).run()

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    trainer(tmp_path / "copied", steps=4, evaluate_every=2).run()
    assert bits(tmp_path / "copied") == bits(tmp_path / "linked")
    for each in Checkpoints(tmp_path / "copied").all():
        each.verify()


def test_unknown_metric_raises_before_the_first_step(tmp_path: Path):
    task = Toy()
    task.metrics = {"loss": "lower", "bleu": "higher"}
    with pytest.raises(UnknownName, match=facts("training.best", "'chrf'")):
        trainer(tmp_path, task, best="chrf")


def disturb(folder: Path, where: str, act: Callable[[], object]) -> FolderMoved:
    """Call `act` in the seventh step or second evaluation of a run, and return the error of the run."""
    task = Toy(dropout=0.3)
    if where == "step":
        task.on_loss = lambda count: act() if count == 7 else None
    else:
        task.on_evaluation = lambda count: act() if count == 2 else None
    folder.mkdir()
    with locked(folder) as lock:
        run = trainer(folder, task, log=True, **SETTINGS)
        run.lock = lock
        with pytest.raises(FolderMoved) as caught:
            run.run()
    return caught.value


@pytest.mark.parametrize(("where", "step"), [("step", 7), ("evaluation", 10)])
def test_moving_the_run_folder_stops_the_run_and_loses_no_step(tmp_path: Path, where: str, step: int):
    whole, here, there = tmp_path / "whole", tmp_path / "here", tmp_path / "there"
    trainer(whole, Toy(dropout=0.3), log=True, **SETTINGS).run()
    error = disturb(here, where, lambda: here.rename(there))
    assert error.place == there and not here.exists()
    assert last(there).step == step
    resumed = trainer(there, Toy(dropout=0.3), log=True, **SETTINGS)
    resumed.resume()
    assert resumed.run().ended
    assert bits(there) == bits(whole)
    for kind in ("training", "evaluation"):
        logged, expected = (
            [(each["step"], each["loss"]) for each in records(run, kind)] for run in (there, whole)
        )
        assert logged == expected


@pytest.mark.parametrize("where", ["step", "evaluation"])
def test_removing_the_run_folder_stops_the_run(tmp_path: Path, where: str):
    here = tmp_path / "here"
    assert disturb(here, where, lambda: shutil.rmtree(here)).place is None
    assert not here.exists()


def test_nothing_is_written_to_a_new_folder_of_the_same_name(tmp_path: Path):
    here = tmp_path / "here"

    def replace() -> None:
        shutil.rmtree(here)
        here.mkdir()

    assert disturb(here, "step", replace).place is None
    assert list(here.iterdir()) == []
