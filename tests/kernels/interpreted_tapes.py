"""Tests of the tapes that a plan keeps, under Triton's interpreter, run by test_kept_tapes.py."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.backends import plans
from regard.kernels import additive, replay
from tests.kernels.series_bound import Unprojected


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 3])], ids=["no mask", "padding"])
def test_kept_tapes_of_a_plan_are_run_for_the_same_layouts_only(
    lengths: Tensor | None, monkeypatch: pytest.MonkeyPatch
):
    replay.forget()
    plans._plans.clear()
    replayed = list[bool]()
    run = additive.KeptTapes.backward

    def counted(*arguments: Any) -> Any:
        gradients = run(*arguments)
        replayed.append(gradients is not None)
        return gradients

    monkeypatch.setattr(additive.KeptTapes, "backward", counted)
    score = Unprojected(torch.linspace(-1, 1, 5)[None].requires_grad_())
    mask = None if lengths is None else regard.padding(lengths)
    leaves = [torch.randn(2, 7, 10)[..., :5].requires_grad_() for _ in range(3)]

    def results(backend: str, doutput: Tensor, needed: list[Tensor]) -> list[Tensor]:
        attended = regard.attention(*leaves, score=score, mask=mask, backend=backend)
        return [attended.output, attended.lse, *torch.autograd.grad(attended.output, needed, doutput)]

    def agrees(doutput: Tensor, needed: list[Tensor]) -> None:
        ours, exact = (results(backend, doutput, needed) for backend in ("fused", "reference"))
        torch.testing.assert_close(ours, exact, atol=2e-5, rtol=1e-4)

    everything = [*leaves, score.vector]
    for hooks in (True,) * 6 + (False,) * 7:  # with hooks, the saved tensors have other strides
        scope: Any = nullcontext()
        if hooks:
            scope = torch.autograd.graph.saved_tensors_hooks(Tensor.contiguous, lambda each: each.clone())
        with scope:
            agrees(torch.randn(2, 7, 5), everything)
        assert not hooks or not any(replayed)
    assert replayed[-1]
    replayed.clear()
    for _ in range(7):
        agrees(torch.randn(2, 7, 5), everything)
    assert replayed[-1]
    for _ in range(4):
        agrees(torch.randn(2, 5, 7).mT, everything)
        agrees(torch.randn(()).expand(2, 7, 5), everything)
        agrees(torch.randn(2, 7, 5), leaves[:1])
        agrees(torch.randn(2, 7, 5), [leaves[2]])
    assert replayed[-4:] == [True] * 4
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
        agrees(torch.randn(2, 7, 5), everything)
    assert not replayed[-1]
    replay.forget()
    with torch.no_grad():
        leaves[0].mul_(2.0)
    agrees(torch.randn(2, 7, 5), everything)
    # Without a tape of its forward pass, the last call does not look for one of its backward pass.
    assert len(replayed) == 7 + 16 + 1
