"""LanguageModel: the base class of language models.

A language model has the interface of an encoder-decoder model (Model in base.py), but no source.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.batch import Batch, TextBatch
from regard.models.base import Encoded, Model, State
from regard.options.model_checks import check_carried

__all__ = ["LanguageModel", "detached"]


class LanguageModel(Model):
    """Base class of language models: p(x) = prod_t p(x_t | x_1 ... x_t-1); subclasses implement step().

    Instead of step(), a subclass can implement features() and output_layer().

    A language model has no source. Its methods start() and step() take an Encoded without memories, which
    source_free() creates. encode() ignores its argument `source`, so that search() can generate text from a
    batch of empty sources.

    embedding: the table of token embeddings, (V, ...).
    recurrent: whether the model can read a text of any length batch by batch. Then each batch starts from the
        state after the previous batch. The state must not grow with the text.
    """

    source_size = 0
    embedding: nn.Embedding
    recurrent: bool = False

    def source_free(self, rows: int) -> Encoded:
        """Return an Encoded without memories for `rows` texts, to pass to start() and step()."""
        return Encoded(torch.zeros(rows, dtype=torch.long, device=self.embedding.weight.device))

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(torch.zeros_like(lengths))

    def first_step(self, batch: Batch | TextBatch) -> tuple[State, Tensor, Encoded]:
        encoded = self.source_free(len(batch))
        return self.start(encoded), batch.inputs, encoded

    def read(self, batch: TextBatch, state: State | None = None) -> tuple[State, Tensor]:
        """Read a batch; return the state after it and the logits (B, T, V).

        state: the state that read() returned for the previous batch. It is used only if batch.carried is
            True: then the texts of this batch continue the texts of the previous batch. Otherwise, read()
            starts from the initial state.

        In training, pass detached(state), so that gradients stop at the start of the batch (truncated
        backpropagation through time).
        """
        if not batch.carried:
            return self.step(*self.first_step(batch))
        return self.step(check_carried(self, state, len(batch)), batch.inputs, self.source_free(len(batch)))


def detached(state: State) -> State:
    """Return a detached copy of the state: gradients do not flow from later tokens back to earlier tokens.

    >>> weight = torch.ones(1, 1, requires_grad=True)
    >>> detached(State(position=3, hidden=(2 * weight,))).hidden[0].requires_grad
    False
    """
    return state.detach()
