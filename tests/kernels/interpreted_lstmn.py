"""Tests of the steps of an LSTMN layer under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.fast.recurrent.lstmn_steps import lstmn_steps
from regard.fast.twins import Twins
from regard.kernels.recurrent import lstmn
from regard.layers import LSTMN

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
    """Return the results of lstmn_steps() and all gradients, from the same random numbers."""
    source = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=source).to(dtype).requires_grad_()

    inputs = [draw(BATCH, steps, gates * width), draw(BATCH, hidden), draw(BATCH, steps - 1, hidden)]
    inputs += [draw(BATCH, before, hidden), draw(BATCH, before, 2 * width)]
    more = draw(BATCH, steps, width) if added else None
    weights = draw(width, gates * width + hidden), draw(width, hidden), draw(hidden)
    outputs = lstmn_steps(*inputs, more, weights, tape)
    factors = [torch.randn(each.shape, generator=source).to(dtype) for each in outputs]
    leaves = [*inputs, *weights, *([] if more is None else [more])]
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
