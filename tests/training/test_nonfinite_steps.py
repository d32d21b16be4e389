"""A step whose loss is not finite: it is not taken, what it was made of is kept, and it can be done again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from regard.errors import DataError
from regard.files import atomic_io
from regard.training.nonfinite_steps import NonFinite, replay
from tests.training.toys import Toy, last, records, trainer


def spoilt(bad: str, dropout: float = 0.0) -> Toy:
    """A toy one of whose points is bad: the one that comes in the fourth batch of the first epoch."""
    task = Toy(dropout=dropout)
    task.bad = bad
    task.x[int(torch.randperm(24, generator=torch.Generator().manual_seed(0))[13]), 0] = 101.0
    return task


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", ["nan", "inf", "gradient"])
def test_a_bad_step_is_not_taken_and_comes_again_in_a_replay(tmp_path: Path, bad: str, accumulate: int):
    task = spoilt(bad, dropout=0.5)
    run = trainer(tmp_path, task, log=True, save_every=1, accumulation_steps=accumulate)
    step = 4 // accumulate
    with pytest.raises(NonFinite, match=rf"step {step}: .*last checkpoint is step {step - 1}"):
        run.run()
    good = last(tmp_path)
    assert good.step == step - 1
    assert torch.equal(good.tensors("weights")["0.weight"], run.model[0].weight)
    assert [each["step"] for each in records(tmp_path, "nonfinite")] == [step]

    place = tmp_path / f"nonfinite-{step:06d}"
    found = replay(place, spoilt(bad, dropout=0.5))
    assert found.step == step and len(found.losses) == accumulate
    assert not math.isfinite(found.value)
    if bad == "gradient":
        assert all(map(math.isfinite, found.losses.values())) and math.isnan(found.norm)
    else:
        assert found.value == math.inf if bad == "inf" else math.isnan(found.value)
    # The same random numbers are drawn: the batch before the bad one loses the same again and again.
    again = replay(place, spoilt(bad, dropout=0.5))
    assert list(map(str, again.losses.values())) == list(map(str, found.losses.values()))


def test_the_run_fails_again_where_it_failed_and_goes_on_with_less(tmp_path: Path):
    for _ in range(2):
        run = trainer(tmp_path, spoilt("nan"), save_every=1)
        run.resume()
        with pytest.raises(NonFinite):
            run.run()
    mended = trainer(tmp_path, Toy(), save_every=1)
    mended.resume()
    assert mended.run().step == 12


def test_a_disk_that_is_full_hides_nothing(tmp_path: Path, monkeypatch):
    run = trainer(tmp_path, spoilt("nan"), evaluate_every=100)

    def full(path: Path, blocks: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_io, "write", full)
    with pytest.raises(NonFinite, match="No space left on device"):
        run.run()


def test_a_folder_without_a_step_is_told_of(tmp_path: Path):
    with pytest.raises(DataError, match=r"replay\nhint: .*nonfinite-"):
        replay(tmp_path, Toy())
