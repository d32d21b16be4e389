"""R-Drop (Liang et al. 2021): a loss for similar outputs of two passes with different dropout masks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.errors import ArgumentError, Setting, message
from regard.models.base import Model
from regard.training.losses import cross_entropy

__all__ = ["RDropLoss", "check_dropout", "r_drop", "r_drop_loss"]


class RDropLoss(NamedTuple):
    """The losses of r_drop(), each summed over the labels that are not PAD.

    total: the value to minimise.
    plain: the cross-entropy without label smoothing, the mean of both passes; detached.
    divergence: the divergence between both passes; detached.
    """

    total: Tensor
    plain: Tensor
    divergence: Tensor


def r_drop_loss(model: Model, batch: Any, labels: Tensor, smoothing: float, weight: float) -> RDropLoss:
    """Compute r_drop(model(batch), labels, smoothing, weight).

    batch: the result of Batch.repeat(2): each pair of rows contains the same sentences.
    labels: (2 B, T), token ids, also repeated.
    """
    return r_drop(model(batch), labels, smoothing, weight)


def r_drop(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> RDropLoss:
    """Compute the cross-entropy of two passes, and a divergence between their output distributions p and q.

    total      = 1/2 (loss of p + loss of q + weight divergence)               (Liang et al. 2021, equation 4)
    divergence = 1/2 sum_t (KL(p_t || q_t) + KL(q_t || p_t))                                  (and equation 2)

    logits: (2 B, T, V). Rows 0 and 1 are two passes of the same sentence, and so on.
    labels: (2 B, T), token ids.
    smoothing: label smoothing of both losses.
    weight: alpha in the paper.

    Differs from the paper: the factor 1/2 of the total. It makes the loss as large as the loss of one pass.

    >>> logits = torch.tensor([[[0.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]])
    >>> r_drop(logits, torch.tensor([[2], [2]]), 0.0, 1.0).divergence.item().__round__(4)
    0.1214
    """
    total, plain = cross_entropy(logits, labels, smoothing)
    scores_BPTV = torch.log_softmax(logits.unflatten(0, (-1, 2)), -1, dtype=torch.float32)
    p_BTV, q_BTV = scores_BPTV.unbind(1)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v)
    both_BT = ((p_BTV.exp() - q_BTV.exp()) * (p_BTV - q_BTV)).sum(-1)
    divergence = 0.5 * both_BT.masked_fill(labels[::2] == PAD, 0.0).sum()
    return RDropLoss(0.5 * (total + weight * divergence), 0.5 * plain, divergence.detach())


def check_dropout(model: nn.Module) -> None:
    """Raise ArgumentError if a model has no dropout, because then both passes of R-Drop are equal."""
    rates = (getattr(each, name, 0.0) for each in model.modules() for name in ("p", "dropout"))
    if not any(isinstance(rate, float) and rate > 0 for rate in rates):
        problem = "R-Drop compares two passes with different dropout masks, but the model has no dropout"
        hint = (
            *("use ", Setting("model", "dropout", 0.3), " (for few epochs, the default is 0)"),
            *(" or ", Setting("training", "r_drop", 0)),
        )
        raise ArgumentError(message("training.r_drop", problem, hint=hint))
