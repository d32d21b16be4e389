from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.fast.dropout import FastDropout
from regard.fast.twins import Twins


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (63, 17), (2, 3, 1000)])
def test_dropout_keeps_the_mean_and_the_mask_of_the_gradient(dtype: torch.dtype, shape: tuple[int, ...]):
    layer = nn.Dropout(0.25)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    with Twins(layer):
        assert type(layer) is FastDropout
        result = layer(x)
        result.sum().backward()
        assert torch.equal(layer.eval()(x), x)
    assert type(layer.train()) is nn.Dropout
    assert result.dtype == dtype and result.shape == shape
    assert x.grad is not None and torch.equal(x.grad, result.detach())
    assert set(result.unique().tolist()) <= {0.0, torch.tensor(4 / 3, dtype=dtype).item()}
    if result.numel() > 1000:
        assert abs((result == 0).float().mean().item() - 0.25) < 0.05
