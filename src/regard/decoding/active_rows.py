"""Live: the sentences that are still being said, and what each of them needs; shared by every search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.batch import BOS, Batch
from regard.decoding.rules import Rules, forced
from regard.models.base import Encoded, Model, State
from regard.models.eval_mode import in_eval_mode

__all__ = ["Live", "begin", "device_of", "quietly", "rows_of"]


@dataclass(frozen=True, eq=False)
class Live:
    """The sentences that are still being said, with K rows of hypotheses each.

    number: (b,), their places in the batch. limits: (b,), how many tokens each may have. must: (b, P), the
    prefix forced on each, PAD where it is free.
    """

    number: Tensor
    limits: Tensor
    must: Tensor
    encoded: Encoded

    def __len__(self) -> int:
        return len(self.number)

    def keep(self, index: Tensor) -> Live:
        """Only these of the sentences, (b',)."""
        return Live(
            self.number.index_select(0, index),
            self.limits.index_select(0, index),
            self.must.index_select(0, index),
            self.encoded.reorder(index),
        )

    def must_say(self, step: int, each: int) -> Tensor | None:
        """The token forced on each row at this step, (b K,), PAD where it is free; None where all are."""
        return self.must[:, step].repeat_interleave(each) if step < self.must.shape[1] else None


def begin(
    model: Model, batch: Batch, rules: Rules, prefixes: Sequence[Sequence[int]] | None, each: int
) -> tuple[Live, State, Tensor]:
    """Read the sources: the live sentences, a state with `each` rows for every one, and BOS for each row."""
    device = batch.source.device
    must_BP, prefix_lengths_B = forced(prefixes, len(batch), model.target_size)
    limits_B = rules.limits(model, batch.source_lengths, prefix_lengths_B.to(device))
    encoded = model.encode(batch.source, batch.source_lengths)
    number_B = torch.arange(len(batch), device=device)
    state = model.start(encoded).reorder(number_B.repeat_interleave(each))
    last_R1 = torch.full((len(batch) * each, 1), BOS, device=device)
    return Live(number_B, limits_B, must_BP.to(device), encoded), state, last_R1


def rows_of(index: Tensor, each: int) -> Tensor:
    """The rows that the hypotheses of these sentences have in a state: b K to b K + K - 1 for sentence b."""
    return (index[:, None] * each + torch.arange(each, device=index.device)).flatten()


@contextmanager
def quietly(model: Model) -> Iterator[None]:
    """Run a model in eval mode and without gradients."""
    with in_eval_mode(model), torch.no_grad():
        yield


def device_of(model: Model) -> torch.device:
    """Where a model's numbers are; the CPU for a model that has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
