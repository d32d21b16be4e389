"""Seq2Seq: the RNN encoder-decoder without attention; the source is encoded as one vector of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.layers.recurrent import Recurrence, Recurrent, flip
from regard.models.base import Encoded, Model, State, words
from regard.options.model_checks import at_least_one, check_seq2seq, checked

__all__ = ["Seq2Seq"]


class Seq2Seq(Model):
    """RNN encoder-decoder without attention: decode from the last encoder state.

    h_j = cell(e(x_j), h_{j-1}),  c = h_S,  s_0 = c,  s_i = cell(e(y_{i-1}), s_{i-1})

    x and y are source and target words, e(x) is the embedding of x, h_j and s_i are the states of encoder and
    decoder, and S is the source length.

    recurrence: cell, width, depth and dropout of encoder and decoder.
    context: "first" or "every". With "first" (Sutskever et al. 2014), c is only the initial decoder state.
        With "every" (Cho et al. 2014), c is also an input of the cell and of the output layer at every step.
    reverse: whether to read the source words in reverse order (Sutskever et al. 2014, section 3.3).

    Differs from Cho et al.: with "every", the output layer is a linear layer of s_i, c and e(y_{i-1}),
    instead of a maxout layer.

    >>> from regard.data.batch import Batch
    >>> model = Seq2Seq(source_size=9, target_size=7, recurrence=Recurrence(width=8, cell="lstm"))
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    steps_use_position = False

    @checked(check_seq2seq)
    def __init__(
        self,
        source_size: int,
        target_size: int,
        recurrence: Recurrence | None = None,
        *,
        context: str = "first",
        reverse: bool = False,
    ):
        super().__init__()
        settings = recurrence or Recurrence()
        self.source_size, self.target_size = source_size, target_size
        self.every, self.reverse = context == "every", reverse
        width, inputs = settings.width, settings.embedding_width
        context_size = width if self.every else 0
        self.source = words(source_size, inputs)
        self.target = words(target_size, inputs)
        self.encoder = Recurrent(settings, inputs)
        self.decoder = Recurrent(settings, inputs + context_size)
        self.readout = nn.Linear(width + context_size + (inputs if self.every else 0), target_size)
        self.dropout = nn.Dropout(settings.dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        embedded_BSM = self.dropout(self.source(flip(source, lengths - 1) if self.reverse else source))
        return Encoded(lengths, first=self.encoder.encode(embedded_BSM, lengths)[1])

    def output_layer(self) -> nn.Module:
        return self.readout

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        embedded_RTM = self.dropout(self.target(at_least_one(tokens)))
        inputs, context = embedded_RTM, []
        if self.every:
            last_BM = encoded.first[0][:, -1]
            shared_RM = last_BM.repeat_interleave(tokens.shape[0] // max(last_BM.shape[0], 1), 0)
            context = [shared_RM[:, None].expand(-1, tokens.shape[1], -1), embedded_RTM]
            inputs = torch.cat((embedded_RTM, context[0]), -1)
        states_RTM, hidden = self.decoder.run(inputs, state.hidden)
        features_RTM = self.dropout(torch.cat((states_RTM, *context), -1))
        return State(state.position + tokens.shape[1], hidden), features_RTM
