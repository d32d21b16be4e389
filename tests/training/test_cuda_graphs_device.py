"""Recurrent models on a CUDA device: their gradients are those of the CPU, captured or not."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.eager_loop import Learned
from regard.data.batch import Batch
from regard.models import build_model
from regard.training.cuda_graphs import WARM_UPS
from regard.training.gradients import Gradients
from regard.training.losses import cross_entropy
from tests.models.variants import SIZE, VARIANTS

pytestmark = pytest.mark.gpu

RECURRENT = [name for name, (kind, _) in VARIANTS.items() if kind != "transformer"]
BATCHES = (
    Batch.collate([[4, 5, 6, 7, 8], [9], [10, 4]], [[5, 6], [7, 8, 9, 10], []]),
    Batch.collate([[10, 5, 6, 7, 8], [9, 9], [4]], [[5], [7, 8, 9, 4], [6, 6]]),
)


def made(name: str, **more: Any) -> nn.Module:
    kind, options = VARIANTS[name]
    torch.manual_seed(0)
    return build_model(kind, SIZE, SIZE, **{**options, "width": 24, **more}).train()


def learned(model: nn.Module, device: str, said: list[str], **options: Any) -> Tensor:
    """The gradients of three steps, the last of two batches; as one vector."""
    task = Learned(model, lambda batch: cross_entropy(model(batch), batch.labels, 0.1))
    gradients = Gradients(task, seed=1, device=torch.device(device), say=said.append, **options)
    for step, batches in enumerate((BATCHES[:1], BATCHES[1:], BATCHES)):
        model.zero_grad(set_to_none=True)
        gradients.add(step, batches, 9)
    found = [each.grad.double().flatten().cpu() for each in model.parameters() if each.grad is not None]
    return torch.cat(found)


@pytest.mark.parametrize("name", RECURRENT)
def test_gradients_are_those_of_the_cpu(name: str):
    model, said = made(name), list[str]()
    exact = learned(copy.deepcopy(model).double(), "cpu", said)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        for captured in (False, True):
            found = learned(copy.deepcopy(model).cuda(), "cuda", said, captured=captured)
            assert (found - exact).norm() <= 1e-4 * exact.norm()
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert said == []


@pytest.mark.parametrize("name", RECURRENT)
def test_in_half_precision_too_and_twice_the_same_bits(name: str):
    model, said = made(name, dropout=0.3), list[str]()
    runs = [
        learned(copy.deepcopy(model).cuda(), "cuda", said, half=True, captured=captured)
        for captured in (False, True, True)
    ]
    assert said == []
    assert runs[1].equal(runs[2])
    assert (runs[1] - runs[0]).norm() <= 0.05 * runs[0].norm()


def test_what_reads_the_device_runs_as_it_is():
    model, said = nn.Linear(5, 5).cuda(), list[str]()

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        found = nn.functional.dropout(model(batch.source.float()), 0.5).square().sum()
        assert found.item() >= 0
        return found, found.detach()

    gradients = Gradients(
        Learned(model, loss), seed=1, device=torch.device("cuda"), captured=True, say=said.append
    )
    sources = Batch.collate([[4, 5, 6, 7]], [[4]])
    losses = [gradients.add(1, [sources], 4)[""].item() for _ in range(3)]
    assert len(said) == 1 and losses[0] == losses[1] == losses[2]


class Old:
    """A graph that nobody but itself holds."""

    def __init__(self) -> None:
        self.graph, self.itself = torch.cuda.CUDAGraph(), self
        with torch.cuda.graph(self.graph):
            torch.zeros(1, device="cuda")


def test_garbage_does_not_end_a_capture():
    """An old graph that is found among it would be freed by a call that no capture survives."""
    model, said, calls = nn.Linear(5, 5).cuda(), list[str](), list[int]()
    old = [Old()]

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        calls.append(len(calls))
        if len(calls) == WARM_UPS + 1:  # the capture
            old.clear()
            calls.append(len([[each] for each in range(100_000)]))  # so many that garbage is looked for
        found = model(batch.source.float()).square().sum()
        return found, found.detach()

    gradients = Gradients(
        Learned(model, loss), seed=1, device=torch.device("cuda"), captured=True, say=said.append
    )
    gc.freeze()  # so that even what is old is looked at soon
    try:
        gradients.add(1, [Batch.collate([[4, 5, 6, 7]], [[4]])], 4)
    finally:
        gc.unfreeze()
    assert said == [] and len(calls) == WARM_UPS + 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_the_cpu(smoothing: float):
    torch.manual_seed(0)
    logits, labels = 5 * torch.randn(40, 30, 3000), torch.randint(0, 3000, (40, 30))
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        own = logits.to(device, dtype).requires_grad_()
        total, plain = cross_entropy(own, labels.to(device), smoothing)
        total.backward()
        found.append([each.double().cpu() for each in (total.detach(), plain, own.grad)])
    for mine, oracle in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-5, atol=1e-6)
