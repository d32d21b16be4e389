"""A step with a nonfinite loss: weights stay unchanged, its inputs are saved, and it can be replayed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from regard.errors import DataError
from regard.files import atomic_io
from regard.training.nonfinite_steps import NonFinite, replay
from tests.training.toys import Toy, last, records, trainer


def task_with_bad_point(bad: str, dropout: float = 0.0) -> Toy:
    """Return a toy task with one bad point, in the fourth batch of the first epoch."""
    task = Toy(dropout=dropout)
    task.bad = bad
    task.x[int(torch.randperm(24, generator=torch.Generator().manual_seed(0))[13]), 0] = 101.0
    return task


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", ["nan", "inf", "gradient"])
def test_nonfinite_step_is_not_applied_and_can_be_replayed(tmp_path: Path, bad: str, accumulate: int):
    task = task_with_bad_point(bad, dropout=0.5)
    run = trainer(tmp_path, task, log=True, save_every=1, accumulation_steps=accumulate)
    step = 4 // accumulate
    with pytest.raises(NonFinite, match=rf"step {step}: .*step {step - 1}"):
        run.run()
    good = last(tmp_path)
    assert good.step == step - 1
    assert torch.equal(good.tensors("weights")["0.weight"], run.model[0].weight)
    assert [each["step"] for each in records(tmp_path, "nonfinite")] == [step]

    place = tmp_path / f"nonfinite-{step:06d}"
    replayed = replay(place, task_with_bad_point(bad, dropout=0.5))
    assert replayed.step == step and len(replayed.losses) == accumulate
    assert not math.isfinite(replayed.value)
    if bad == "gradient":
        assert all(map(math.isfinite, replayed.losses.values())) and math.isnan(replayed.norm)
    else:
        assert replayed.value == math.inf if bad == "inf" else math.isnan(replayed.value)
    # A replay uses the same random numbers: every replay has the same losses.
    again = replay(place, task_with_bad_point(bad, dropout=0.5))
    assert list(map(str, again.losses.values())) == list(map(str, replayed.losses.values()))


def test_resumed_run_fails_at_the_same_step_until_the_data_are_fixed(tmp_path: Path):
    for _ in range(2):
        run = trainer(tmp_path, task_with_bad_point("nan"), save_every=1)
        run.resume()
        with pytest.raises(NonFinite):
            run.run()
    fixed = trainer(tmp_path, Toy(), save_every=1)
    fixed.resume()
    assert fixed.run().step == 12


def test_nonfinite_step_on_a_full_disk_raises_both_errors(tmp_path: Path, monkeypatch):
    run = trainer(tmp_path, task_with_bad_point("nan"), evaluate_every=100)

    def full(path: Path, blocks: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_io, "write", full)
    with pytest.raises(NonFinite, match="No space left"):
        run.run()


def test_symbolic_link_is_not_followed_when_the_step_is_saved(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "batch-0-0.safetensors").write_text("a file of somebody else")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "nonfinite-000004").symlink_to(elsewhere)
    with pytest.raises(NonFinite, match="symbolic link"):
        trainer(tmp_path / "run", task_with_bad_point("nan"), save_every=1).run()
    assert [path.name for path in elsewhere.iterdir()] == ["batch-0-0.safetensors"]
    assert (elsewhere / "batch-0-0.safetensors").read_text() == "a file of somebody else"


def test_replay_ignores_files_with_other_names(tmp_path: Path):
    with pytest.raises(NonFinite):
        trainer(tmp_path, task_with_bad_point("nan"), save_every=1).run()
    place = tmp_path / "nonfinite-000004"
    for name in ("batch-a-b", "batch-0-1x", "batch-0-0-0"):
        (place / f"{name}.safetensors").write_text("")
    assert list(replay(place, task_with_bad_point("nan")).losses) == ["batch-0-0"]


def test_replay_of_a_folder_without_a_saved_step_raises(tmp_path: Path):
    with pytest.raises(DataError, match=r"(?s)hint: .*nonfinite-"):
        replay(tmp_path, Toy())
