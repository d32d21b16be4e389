"""Each loss against its equation, computed token by token."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import PAD
from regard.training.losses import cross_entropy, guided_alignment


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_equals_its_equation(smoothing: float):
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[4, 5, 3, PAD, PAD], [6, 3, PAD, PAD, PAD], [4, 4, 4, 4, 3]])
    smoothed, plain = cross_entropy(logits, labels, smoothing)
    expected = expected_plain = 0.0
    for row, token in zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True):
        if token != PAD:
            logs = torch.log(torch.softmax(row, -1))
            expected_plain -= logs[token]
            expected -= (1 - smoothing) * logs[token] + smoothing * logs.mean()
    torch.testing.assert_close(smoothed, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain, expected_plain.detach().float(), rtol=1e-5, atol=1e-5)
    assert not plain.requires_grad and smoothed.requires_grad


def test_padding_has_zero_loss_and_zero_gradient():
    logits = torch.randn(1, 3, 6, requires_grad=True)
    smoothed, plain = cross_entropy(logits, torch.tensor([[PAD, PAD, PAD]]), 0.1)
    smoothed.backward()
    assert smoothed.item() == plain.item() == 0.0
    assert logits.grad is not None and not logits.grad.any()


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(2, 3, 6, dtype=torch.bfloat16)
    smoothed, plain = cross_entropy(logits, torch.tensor([[4, 5, 3], [4, 3, PAD]]), 0.1)
    assert smoothed.dtype == plain.dtype == torch.float32


def test_guided_alignment_averages_over_links_and_ignores_rows_without_links():
    weights = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.4, 0.5], [0.3, 0.3, 0.4]]], requires_grad=True)
    links = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
    loss = guided_alignment(weights, links)
    logs = weights[0].log()
    torch.testing.assert_close(loss, -(logs[0, 0] + (logs[1, 1] + logs[1, 2]) / 2))
    loss.backward()
    assert weights.grad is not None and not weights.grad[0, 2].any()


def test_guided_alignment_is_finite_for_a_weight_of_zero():
    loss = guided_alignment(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]]))
    assert torch.isfinite(loss) and float(loss) > 10
