"""Checkpoint averaging: sums in float64, integer tensors, and checkpoints of different models."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ArgumentError, DataError
from regard.training.checkpoints.checkpoints import Checkpoints, mean_weights


def saved(folder, *groups):
    checkpoints = Checkpoints(folder, keep=9)
    return [checkpoints.save(step, {"weights": group}, {}) for step, group in enumerate(groups, 1)]


def test_mean_is_computed_in_float64(tmp_path):
    values = [1.0, 1e-9, 1e-9, 1e-9, 1e-9]
    mean = mean_weights(saved(tmp_path, *({"w": torch.tensor([value])} for value in values)))
    expected = torch.tensor(values, dtype=torch.float32).double().mean().float()
    assert mean["w"].dtype == torch.float32 and mean["w"].item() == expected.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_are_kept_and_integers_are_those_of_the_last_checkpoint(tmp_path, dtype):
    groups = [
        {
            "w": torch.full((2, 3), float(step), dtype=dtype),
            "count": torch.tensor(step),
            "on": torch.tensor(True),
        }
        for step in (1, 2, 6)
    ]
    mean = mean_weights(saved(tmp_path, *groups))
    assert torch.equal(mean["w"], torch.full((2, 3), 3.0, dtype=dtype))
    assert mean["count"].item() == 6 and mean["count"].dtype == torch.int64 and mean["on"].item() is True


def test_mean_of_one_checkpoint_is_that_checkpoint(tmp_path):
    weight = torch.randn(5)
    assert torch.equal(mean_weights(saved(tmp_path, {"w": weight}))["w"], weight)


@pytest.mark.parametrize(
    "other", [{"v": torch.zeros(2)}, {"w": torch.zeros(3)}, {"w": torch.zeros(2).double()}]
)
def test_checkpoints_of_different_models_raise(tmp_path, other):
    with pytest.raises(DataError, match="step-000001"):
        mean_weights(saved(tmp_path, {"w": torch.zeros(2)}, other))
    with pytest.raises(ArgumentError, match="checkpoints"):
        mean_weights([])
