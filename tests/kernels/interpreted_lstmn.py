"""Tests of the steps of an LSTMN layer under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from regard.fast.recurrent.lstmn import FastLSTMNLayer
from regard.fast.twins import Twins
from regard.kernels.recurrent import lstmn
from regard.layers import LSTMN
from regard.layers.lstmn import LSTMNLayer
from regard.masks.mask import Mask
from regard.memory import Memory

BATCH, STEPS = 3, 4
CASES = {
    "empty tapes": {},
    "tapes": {"before": 3, "added": True},
    "limited tapes": {"before": 2, "tape": 2, "gates": 5, "added": True},
    "unused gate, one step": {"steps": 1, "gates": 5, "before": 1},
    "several tiles, odd sizes": {"before": 21, "width": 5, "hidden": 37, "steps": 2},
}


def results(
    dtype: torch.dtype, *, before: int = 0, tape: int | None = None, gates: int = 4, added: bool = False,
    width: int = 6, hidden: int = 7, steps: int = STEPS,
) -> list[Tensor]:  # fmt: skip
    """Return the results of a layer and all gradients, from the same random numbers.

    float64 runs the plain layer, which has no twin then.
    """
    source = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=source).to(dtype).requires_grad_()

    layer = LSTMNLayer(8, width, hidden, lower=gates == 5)
    for each in layer.parameters():
        each.data = 0.5 * torch.randn(each.shape, generator=source)
    layer.to(dtype)
    inputs = [draw(BATCH, steps, 8), draw(BATCH, 1, before, hidden), draw(BATCH, 1, before, 2 * width)]
    inputs += [draw(BATCH, width), *([draw(BATCH, steps, width)] if added else [])]
    past = Memory(*inputs[1:3], layer.score, Mask(), width)
    with Twins(layer) if dtype == torch.float32 else nullcontext():
        assert isinstance(layer, FastLSTMNLayer) == (dtype == torch.float32)
        states, cells, past, summary = layer(
            inputs[0], past, inputs[3], inputs[4] if added else None, tape=tape
        )
    outputs = [states, cells, past.key, past.value, summary]
    factors = [torch.randn(each.shape, generator=source).to(dtype) for each in outputs]
    leaves = [*inputs, *layer.parameters()]
    loss = sum((each * factor).sum() for each, factor in zip(outputs, factors, strict=True))
    return [*outputs, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("case", CASES)
def test_steps_agree(case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lstmn, "TILE", 128)  # several tiles also in small cases
    for mine, oracle in zip(
        results(torch.float32, **CASES[case]), results(torch.float64, **CASES[case]), strict=True
    ):
        assert mine.dtype == torch.float32 and mine.isfinite().all()
        error = (mine.double() - oracle).norm() / oracle.norm().clamp(min=1e-9)
        assert error < 1e-5 or not oracle.numel()


def test_layers_use_the_kernels(monkeypatch: pytest.MonkeyPatch):
    launches, read = [], lstmn.read
    monkeypatch.setattr(lstmn, "read", lambda *given: (launches.append(given), read(*given)))
    layers, x = LSTMN(3, 4, depth=2), torch.randn(2, 3, 3)
    with Twins(layers):
        layers.run(x, layers.zeros(x))
    assert len(launches) == 6
