"""The update on the device: it reads no value on the host, so that a CUDA graph can contain it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.fast.captured.steps import DeviceUpdate, own_gradients
from regard.training.gradients import Average, build_optimizer


class NoReads(TorchDispatchMode):
    """Raises an error if the host reads the value of a tensor, which waits for a GPU."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "local_scalar" not in str(operator), "a value was read on the host"
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_update_reads_no_value_on_the_host(optimizer: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    built = build_optimizer(
        model, beta2=0.98, weight_decay=0.1, name=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0
    )
    average = Average(model, 0.9)
    update = DeviceUpdate(built, average, torch.device("cpu"), limit=0.5)
    parameters = list(model.parameters())
    before = [each.detach().clone() for each in parameters]
    with NoReads(), pytest.raises(AssertionError, match="read"):
        parameters[0].sum().item()
    for step in (1, 2):
        with NoReads():
            update.set_step(step, 0.1)
            total = model(torch.ones(2, 3)).square().sum()
            gradients = own_gradients(parameters, torch.autograd.grad(total, parameters))
            norm, failed = update.apply(parameters, gradients, total.detach())
        assert float(norm) > 0 and float(failed) == 0
    assert not any(each.equal(old) for each, old in zip(parameters, before, strict=True))
    assert not any(average.tensors()[name].equal(each) for name, each in model.named_parameters())
