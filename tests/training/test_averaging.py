"""The mean of checkpoints: in float64, of numbers that can be averaged, of models that are the same."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ArgumentError, DataError
from regard.training.checkpoints.averaging import mean_weights
from regard.training.checkpoints.checkpoints import Checkpoints


def saved(folder, *groups):
    checkpoints = Checkpoints(folder, keep=9)
    return [checkpoints.save(step, {"weights": group}, {}) for step, group in enumerate(groups, 1)]


def test_sums_are_taken_in_float64(tmp_path):
    values = [1.0, 1e-9, 1e-9, 1e-9, 1e-9]
    found = mean_weights(saved(tmp_path, *({"w": torch.tensor([value])} for value in values)))
    expected = torch.tensor(values, dtype=torch.float32).double().mean().float()
    assert found["w"].dtype == torch.float32 and found["w"].item() == expected.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_tensor_keeps_its_dtype_and_counts_are_the_last(tmp_path, dtype):
    groups = [
        {
            "w": torch.full((2, 3), float(step), dtype=dtype),
            "count": torch.tensor(step),
            "on": torch.tensor(True),
        }
        for step in (1, 2, 6)
    ]
    found = mean_weights(saved(tmp_path, *groups))
    assert torch.equal(found["w"], torch.full((2, 3), 3.0, dtype=dtype))
    assert found["count"].item() == 6 and found["count"].dtype == torch.int64 and found["on"].item() is True


def test_one_is_its_own_mean(tmp_path):
    weight = torch.randn(5)
    assert torch.equal(mean_weights(saved(tmp_path, {"w": weight}))["w"], weight)


@pytest.mark.parametrize(
    "other", [{"v": torch.zeros(2)}, {"w": torch.zeros(3)}, {"w": torch.zeros(2).double()}]
)
def test_what_is_not_the_same_model_is_refused(tmp_path, other):
    with pytest.raises(DataError, match="differ from those of step-000001"):
        mean_weights(saved(tmp_path, {"w": torch.zeros(2)}, other))
    with pytest.raises(ArgumentError, match="no checkpoints"):
        mean_weights([])
