"""A step with a nonfinite loss: weights stay unchanged, and a resumed run repeats the step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.training.progress import NonFinite
from tests.training.toys import Toy, last, records, trainer


def task_with_bad_point(bad: str, dropout: float = 0.0) -> Toy:
    """Return a toy task with one bad point, in the fourth batch of the first epoch."""
    task = Toy(dropout=dropout)
    task.bad = bad
    task.x[int(torch.randperm(24, generator=torch.Generator().manual_seed(0))[13]), 0] = 101.0
    return task


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", ["nan", "inf", "gradient"])
def test_nonfinite_step_is_not_applied(tmp_path: Path, bad: str, accumulate: int):
    task = task_with_bad_point(bad, dropout=0.5)
    run = trainer(tmp_path, task, log=True, save_every=1, accumulation_steps=accumulate)
    step = 4 // accumulate
    with pytest.raises(NonFinite, match=rf"step {step}: .*step {step - 1}"):
        run.run()
    good = last(tmp_path)
    assert good.step == step - 1
    assert torch.equal(good.tensors("weights")["0.weight"], run.model[0].weight)
    assert [each["step"] for each in records(tmp_path, "nonfinite")] == [step]


def test_resumed_run_fails_at_the_same_step_until_the_data_are_fixed(tmp_path: Path):
    messages = []
    for _ in range(2):
        run = trainer(tmp_path, task_with_bad_point("nan", dropout=0.5), save_every=2)
        run.resume()
        with pytest.raises(NonFinite) as raised:
            run.run()
        messages.append((str(raised.value), run.progress.step))
    assert messages[0] == messages[1]
    fixed = trainer(tmp_path, Toy(), save_every=1)
    fixed.resume()
    assert fixed.run().step == 12
