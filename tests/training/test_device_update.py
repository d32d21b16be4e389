"""The update on the device: it reads no value on the host, so that a CUDA graph can contain it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.training import device_update
from regard.training.device_update import DeviceUpdate, own_gradients
from regard.training.optimizer import Average, build_optimizer


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
    with NoReads(), pytest.raises(AssertionError, match="was read"):
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


@pytest.mark.gpu
def test_adamw_as_one_kernel_equals_the_fused_optimizer_of_torch(monkeypatch: pytest.MonkeyPatch):
    """Three replays of a captured update, with gradients at other addresses than in the warm-up."""
    from regard.training.cuda_graphs import new_pool, recorded

    device, results = torch.device("cuda"), []
    for many in (1, 1 << 40):
        monkeypatch.setattr(device_update, "MANY", many)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(300, 401), nn.Linear(401, 1)).to(device)
        built = build_optimizer(model, beta2=0.98, weight_decay=0.1)
        update, parameters = DeviceUpdate(built, None, device, limit=0.5), list(model.parameters())
        data = torch.randn(9, 300, device=device)

        def step(update=update, parameters=parameters, model=model, data=data) -> torch.Tensor:
            total = model(data).square().sum()
            gradients = own_gradients(parameters, torch.autograd.grad(total, parameters))
            return update.apply(parameters, gradients, total.detach())[0]

        update.failed.fill_(1.0)
        update.set_step(1, 1e-3)
        replay, norm = recorded(step, device, new_pool())
        update.failed.zero_()
        for number in (1, 2, 3):
            update.set_step(number, 1e-3 * number)
            replay()
        assert (update._addresses is not None) == (many == 1)
        results.append([norm.clone(), *(each.detach().clone() for each in parameters)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
