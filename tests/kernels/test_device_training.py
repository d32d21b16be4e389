"""Tests of the kernels of training on a CUDA device, at full size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.kernels import kernel_choice
from regard.training import losses
from regard.training.cuda_graphs import new_pool, recorded

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def relative(mine: Tensor, exact: Tensor) -> float:
    return float((mine.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "width", "classes"), [(9000, 512, 32000), (2400, 500, 30001), (7, 64, 11)])
def test_vocabulary_loss_is_as_precise_as_logits_in_bfloat16(
    rows: int, width: int, classes: int, bias: bool, monkeypatch: pytest.MonkeyPatch
):
    """Against float64: at most twice the error of plain PyTorch under autocast, plus one rounding step."""
    torch.manual_seed(0)
    layer = nn.Linear(width, classes, bias, device=CUDA)
    features = torch.randn(1, rows, width, device=CUDA)
    labels = torch.randint(0, classes, (1, rows), device=CUDA)
    labels[:, ::5] = PAD

    def results(half: bool) -> list[Tensor]:
        own = features.to(layer.weight.dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            total, plain = losses.output_loss(own, layer, labels, 0.1)
        return [total, plain, *torch.autograd.grad(total / rows, (own, *layer.parameters()))]

    mine = results(True)
    with monkeypatch.context() as patch:
        patch.setattr(losses, "by_kernel", lambda _: False)
        theirs, exact = results(True), [None]
        layer.double()
        exact = results(False)
    for one, two, right in zip(mine, theirs, exact, strict=True):
        assert relative(one, right) <= 2 * relative(two, right) + 2**-8


def test_vocabulary_loss_needs_less_memory_than_the_logits_and_can_be_captured():
    layer = nn.Linear(64, 32000, device=CUDA)
    features = torch.randn(1, 32768, 64, device=CUDA, requires_grad=True)
    labels = torch.randint(1, 32000, (1, 32768), device=CUDA)
    assert kernel_choice.by_kernel(features)

    def step() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            total, _ = losses.output_loss(features, layer, labels, 0.1)
        return [total.detach(), *torch.autograd.grad(total, (features, *layer.parameters()))]

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    eager = step()
    assert torch.cuda.max_memory_allocated() - before < 32768 * 32000  # half of the logits in bfloat16
    replay, captured = recorded(step, CUDA, new_pool())
    for each in captured:
        each.zero_()
    replay()
    for one, two in zip(eager, captured, strict=True):
        assert torch.equal(one, two)
