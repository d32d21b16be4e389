"""Score the answers of a model to sequences of bits: cross-entropy in bits, and number of wrong bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import TapeBatch


class SequenceBits(NamedTuple):
    """The scores of the answers to B sequences of an algorithmic task.

    Only the bits of scored steps are counted: the steps where the field `scored` of the TapeBatch is True.

    bits: (B,), the cross-entropy of these bits, in bits: the sum of -log2 p(target).
    wrong: (B,), the number of these bits that are wrong: the more probable value is not the target.
    """

    bits: Tensor
    wrong: Tensor


def answer_loss(logits: Tensor, batch: TapeBatch) -> Tensor:
    """Return the cross-entropy of each of B sequences, summed over its scored bits, in nats, (B,).

    logits: (B, T, Y), the outputs of the model for T steps of Y bits each.
    batch: the sequences, with the right bits and the steps whose bits are scored.

    >>> batch = TapeBatch(torch.zeros(1, 2, 3), torch.ones(1, 2, 2), torch.tensor([[False, True]]))
    >>> (answer_loss(torch.zeros(1, 2, 2), batch) / math.log(2)).tolist()  # one scored step of two bits
    [2.0]
    """
    each_BTY = functional.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="none")
    return torch.where(batch.scored, each_BTY.sum(-1), 0.0).sum(1)


@torch.no_grad()
def sequence_bits(
    model: nn.Module, batch: TapeBatch, stopping: Callable[[], bool] = lambda: False, rows: int = 256
) -> SequenceBits | None:
    """Run a model on sequences and return their scores, or None if stopping() returns True.

    model: model(inputs) returns logits (B, T, Y) and a state.
    batch: the sequences.
    stopping: called before each part of the batch; if it returns True, the evaluation ends.
    rows: the largest number of sequences that are computed at once.
    """
    device = next(model.parameters()).device
    bits, wrong = [], []
    for start in range(0, len(batch), rows):
        if stopping():
            return None
        part = batch.select(slice(start, start + rows)).to(device)
        logits_BTY, _ = model(part.inputs)
        bits.append(answer_loss(logits_BTY, part).cpu() / math.log(2))
        differ_BT = ((logits_BTY > 0) != (part.targets > 0.5)).sum(-1)
        wrong.append(torch.where(part.scored, differ_BT, 0).sum(1).cpu())
    return SequenceBits(torch.cat(bits), torch.cat(wrong))
