"""R-Drop (Liang et al. 2021), section 2, computed by hand from its equations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.data.batch import PAD
from regard.errors import ArgumentError
from regard.training.losses import check_dropout, cross_entropy, r_drop


def test_the_loss_is_equation_4_summed_over_the_target_tokens():
    torch.manual_seed(0)
    logits, weight = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True), 5.0
    labels = torch.tensor([[2, 4, PAD], [6, 3, 5]]).repeat_interleave(2, 0)
    expected, divergence = torch.zeros(()), torch.zeros(())
    for sentence, length in ((0, 2), (1, 3)):
        for t in range(length):
            p, q = logits[2 * sentence, t].softmax(0), logits[2 * sentence + 1, t].softmax(0)
            label = int(labels[2 * sentence, t])
            between = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
            expected = expected - p[label].log() - q[label].log() + weight * between
            divergence = divergence + between
    losses = r_drop(logits, labels, 0.0, weight)
    torch.testing.assert_close(2 * losses.total, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.divergence, divergence.detach(), check_dtype=False)
    torch.testing.assert_close(losses.plain, 0.5 * cross_entropy(logits, labels)[1])
    ours, by_hand = (torch.autograd.grad(each, logits)[0] for each in (losses.total, 0.5 * expected))
    torch.testing.assert_close(ours, by_hand, rtol=1e-5, atol=1e-6)


def test_equal_passes_have_the_loss_of_one_pass():
    logits, labels = torch.randn(2, 3, 5).repeat_interleave(2, 0), torch.tensor([[1, 4, 2]] * 4)
    losses = r_drop(logits, labels, 0.1, 5.0)
    torch.testing.assert_close(losses.total, cross_entropy(logits[::2], labels[::2], 0.1)[0])
    assert losses.divergence == 0


def test_a_model_without_dropout_is_an_error():
    check_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    with pytest.raises(ArgumentError, match=r"model\.dropout"):
        check_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
