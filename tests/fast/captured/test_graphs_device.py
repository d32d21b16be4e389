"""Recurrent models on a CUDA device, with and without CUDA graphs, have the gradients of the CPU."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.eager_loop import Learned
from regard.data.batch import Batch
from regard.fast.captured.graphs import WARM_UPS, Uncaptured
from regard.fast.captured.steps import CapturedSteps, DeviceUpdate
from regard.models import build_model
from regard.training.gradients import Gradients
from regard.training.losses import cross_entropy
from regard.training.progress import StepRequest
from tests.models.variants import SIZE, VARIANTS

pytestmark = pytest.mark.gpu

RECURRENT = [name for name, (kind, _) in VARIANTS.items() if kind != "transformer"]
BATCHES = (
    Batch.collate([[4, 5, 6, 7, 8], [9], [10, 4]], [[5, 6], [7, 8, 9, 10], []]),
    Batch.collate([[10, 5, 6, 7, 8], [9, 9], [4]], [[5], [7, 8, 9, 4], [6, 6]]),
)


def make_model(name: str, **more: Any) -> nn.Module:
    kind, options = VARIANTS[name]
    torch.manual_seed(0)
    return build_model(kind, SIZE, SIZE, **{**options, "width": 24, **more}).train()


def captured_steps(gradients: Gradients, model: nn.Module) -> CapturedSteps:
    """Return CapturedSteps that subtract the gradients from the weights at a learning rate of 1."""
    update = DeviceUpdate(torch.optim.SGD(model.parameters(), fused=True), None, gradients.device)
    return CapturedSteps(gradients, update, most=9)


def gradients_of(model: nn.Module, device: str, **options: Any) -> Tensor:
    """Return the gradients of the last of three steps, which has two batches, as one vector."""
    task = Learned(model, lambda batch: cross_entropy(model(batch), batch.labels, 0.1))
    gradients = Gradients(task, seed=1, device=torch.device(device), **options)
    steps = captured_steps(gradients, model) if gradients.captures else None
    before = [each.detach().clone() for each in model.parameters()]
    for step, batches in enumerate((BATCHES[:1], BATCHES[1:], BATCHES)):
        if steps is not None:
            steps.take(StepRequest(step, list(batches), 9, 1.0 if step == 2 else 0.0)).wait()
        else:
            model.zero_grad(set_to_none=True)
            gradients.add(step, batches, 9)
    pairs = zip(before, model.parameters(), strict=True)
    parts = [old - new.detach() if steps is not None else new.grad for old, new in pairs]
    return torch.cat([each.double().flatten().cpu() for each in parts if each is not None])


@pytest.mark.parametrize("name", RECURRENT)
def test_gradients_equal_those_of_the_cpu(name: str):
    model = make_model(name)
    exact = gradients_of(copy.deepcopy(model).double(), "cpu")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        for captured in (False, True):
            ours = gradients_of(copy.deepcopy(model).cuda(), "cuda", captured=captured)
            assert (ours - exact).norm() <= 1e-4 * exact.norm()
    finally:
        torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("name", RECURRENT)
def test_half_precision_is_close_and_captured_runs_are_bitwise_identical(name: str):
    model = make_model(name, dropout=0.3)
    runs = [
        gradients_of(copy.deepcopy(model).cuda(), "cuda", precision="bfloat16", captured=captured)
        for captured in (False, True, True)
    ]
    assert runs[1].equal(runs[2])
    assert (runs[1] - runs[0]).norm() <= 0.05 * runs[0].norm()


def test_loss_that_synchronises_is_not_captured():
    model = nn.Linear(5, 5).cuda()

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        total = nn.functional.dropout(model(batch.source.float()), 0.5).square().sum()
        assert total.item() >= 0
        return total, total.detach()

    gradients = Gradients(Learned(model, loss), seed=1, device=torch.device("cuda"), captured=True)
    sources, before = Batch.collate([[4, 5, 6, 7]], [[4]]), model.weight.detach().clone()
    with pytest.raises(Uncaptured):
        captured_steps(gradients, model).take(StepRequest(1, [sources], 4, 1.0))
    losses = [gradients.add(1, [sources], 4)[""].item() for _ in range(2)]
    assert torch.equal(model.weight, before) and losses[0] == losses[1]


class Old:
    """A CUDA graph in a reference cycle: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.graph, self.itself = torch.cuda.CUDAGraph(), self
        with torch.cuda.graph(self.graph):
            torch.zeros(1, device="cuda")


def test_garbage_collection_does_not_break_a_capture():
    """Freeing a collected CUDA graph during a capture would invalidate the capture."""
    model, calls = nn.Linear(5, 5).cuda(), list[int]()
    old = [Old()]

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        calls.append(len(calls))
        if len(calls) == WARM_UPS + 1:  # the capture
            old.clear()
            calls.append(len([[each] for each in range(100_000)]))  # enough objects to start a collection
        total = model(batch.source.float()).square().sum()
        return total, total.detach()

    gradients = Gradients(Learned(model, loss), seed=1, device=torch.device("cuda"), captured=True)
    steps = captured_steps(gradients, model)
    gc.freeze()  # fewer old objects, so that a full collection starts soon
    try:
        steps.take(StepRequest(1, [Batch.collate([[4, 5, 6, 7]], [[4]])], 4, 1.0)).wait()
    finally:
        gc.unfreeze()
    assert steps.count == 1 and len(calls) == WARM_UPS + 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_that_of_the_cpu(smoothing: float):
    torch.manual_seed(0)
    logits, labels = 5 * torch.randn(40, 30, 3000), torch.randint(0, 3000, (40, 30))
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        own = logits.to(device, dtype).requires_grad_()
        total, plain = cross_entropy(own, labels.to(device), smoothing)
        total.backward()
        results.append([each.double().cpu() for each in (total.detach(), plain, own.grad)])
    for ours, exact in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
