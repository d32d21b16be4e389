"""Losses of validation batches with CUDA graphs: when they are captured, and that they follow the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.fast.captured import losses as captured_losses
from regard.fast.captured.losses import CapturedLosses
from tests.training import fake_graphs


def test_the_second_evaluation_is_captured_and_later_ones_are_replayed(monkeypatch: pytest.MonkeyPatch):
    fake, weight = fake_graphs.install(monkeypatch), torch.ones(())
    losses = CapturedLosses(lambda batch: weight * batch[0].sum())
    batches = [(torch.full((size,), 2.0),) for size in (3, 5)]
    for evaluation in range(1, 4):
        weight.fill_(float(evaluation))
        assert [losses.of(batch).item() for batch in batches] == [6.0 * evaluation, 10.0 * evaluation]
        assert fake.captured == (2 if evaluation > 1 else 0)
    assert fake.replayed == 4
    first, other = losses.of(batches[0]), (torch.ones(3),)
    assert losses.of(other).item() == 9 and first.item() == 18  # a later replay does not overwrite it


def test_there_is_a_maximum_number_of_graphs(monkeypatch: pytest.MonkeyPatch):
    fake = fake_graphs.install(monkeypatch)
    monkeypatch.setattr(captured_losses, "MOST", 2)
    losses = CapturedLosses(lambda batch: batch.sum())
    for _ in range(3):
        assert [losses.of(torch.ones(size)).item() for size in (1, 2, 3)] == [1, 2, 3]
    assert fake.captured == 2


def test_a_failed_capture_gives_the_losses_without_graphs(monkeypatch: pytest.MonkeyPatch):
    fake, calls = fake_graphs.install(monkeypatch), list[int]()
    fake.refuses = True

    def loss(batch: Tensor) -> Tensor:
        calls.append(len(batch))
        return batch.sum()

    losses = CapturedLosses(loss)
    assert [losses.of(torch.ones(2)).item() for _ in range(4)] == [2, 2, 2, 2]
    assert calls == [2, 2, 2, 2]
