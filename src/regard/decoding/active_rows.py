"""State that all search methods share: the sentences still being decoded, and how decoding starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.batch import BOS, Batch
from regard.decoding.rules import Rules, pad_prefixes
from regard.models.base import Encoded, Model, State, in_eval_mode

__all__ = ["ActiveRows", "device_of", "eval_without_grad", "start_decoding", "state_rows"]


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """The b sentences that are still being decoded, with K hypotheses (rows) each.

    index: (b,), the index of each sentence in the batch. limits: (b,), the maximum number of tokens of each.
    prefix: (b, P), the tokens that each must begin with, PAD after the end of the prefix.
    """

    index: Tensor
    limits: Tensor
    prefix: Tensor
    encoded: Encoded

    def __len__(self) -> int:
        return len(self.index)

    def select(self, index: Tensor) -> ActiveRows:
        """Select sentences by index; index has shape (b',)."""
        return ActiveRows(
            self.index.index_select(0, index),
            self.limits.index_select(0, index),
            self.prefix.index_select(0, index),
            self.encoded.reorder(index),
        )

    def forced_tokens(self, step: int, per_sentence: int) -> Tensor | None:
        """Return the prefix token of each row at this step, (b K,), PAD for rows without one.

        None if the step is past the end of every prefix.
        """
        return self.prefix[:, step].repeat_interleave(per_sentence) if step < self.prefix.shape[1] else None


def start_decoding(
    model: Model, batch: Batch, rules: Rules, prefixes: Sequence[Sequence[int]] | None, per_sentence: int
) -> tuple[ActiveRows, State, Tensor]:
    """Encode the sources and prepare the first step.

    Return the active sentences, a decoder state with `per_sentence` rows for each, and BOS for each row.
    """
    device = batch.source.device
    prefix_BP, prefix_lengths_B = pad_prefixes(prefixes, len(batch), model.target_size)
    limits_B = rules.limits(model, batch.source_lengths, prefix_lengths_B.to(device))
    encoded = model.encode(batch.source, batch.source_lengths)
    index_B = torch.arange(len(batch), device=device)
    state = model.start(encoded).reorder(index_B.repeat_interleave(per_sentence))
    last_R1 = torch.full((len(batch) * per_sentence, 1), BOS, device=device)
    return ActiveRows(index_B, limits_B, prefix_BP.to(device), encoded), state, last_R1


def state_rows(index: Tensor, per_sentence: int) -> Tensor:
    """Return the rows of the decoder state that belong to these sentences: b K to b K + K - 1 for each b."""
    return (index[:, None] * per_sentence + torch.arange(per_sentence, device=index.device)).flatten()


@contextmanager
def eval_without_grad(model: Model) -> Iterator[None]:
    """Run a model in eval mode and without gradients."""
    with in_eval_mode(model), torch.no_grad():
        yield


def device_of(model: Model) -> torch.device:
    """Return the device of a model's parameters or buffers; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
