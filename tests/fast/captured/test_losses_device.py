"""Validation losses on a GPU: CUDA graphs give the same values, also after the weights have changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.fast.captured.losses import CapturedLosses
from regard.fast.twins import Twins
from regard.models.bahdanau import Bahdanau
from regard.models.base import Model
from regard.models.luong import Luong
from regard.training.losses import cross_entropy

pytestmark = pytest.mark.gpu

WORDS = 40


@pytest.mark.parametrize("kind", [Bahdanau, Luong])
@torch.no_grad()
def test_captured_losses_are_those_without_graphs(kind: type[Model]):
    torch.manual_seed(3)
    model = kind(WORDS, WORDS).cuda().eval()

    def loss(batch: Batch) -> Tensor:
        with Twins(model):  # a plain recurrent encoder waits for the lengths, and cannot be captured
            return cross_entropy(model(batch), batch.labels)[1]

    captured = CapturedLosses(loss)
    batches = []
    for lengths in ((5, 9), (3, 2), (5, 9)):
        sides = [[torch.randint(4, WORDS, (length,)).tolist() for length in lengths] for _ in range(2)]
        batches.append(Batch.collate(*sides).to("cuda"))
    for _ in range(3):
        expected = [loss(batch).item() for batch in batches]
        assert [captured.of(batch).item() for batch in batches] == pytest.approx(expected, rel=1e-6)
        for weight in model.parameters():
            weight.mul_(1.5)
    assert len(captured._graphs) == 2 and not captured._failed
