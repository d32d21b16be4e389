"""Recurrent language models: LSTM and GRU (Zaremba et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.layers.recurrent import Recurrence, Recurrent
from regard.models.base import Encoded, State, words
from regard.models.language_base import LanguageModel
from regard.options.model_checks import at_least_one, check_bound, check_language, check_tie, checked

__all__ = [
    "GRULanguageModel",
    "LSTMLanguageModel",
    "RecurrentLanguageModel",
    "StatefulLanguageModel",
    "initialize_uniform",
]


class StatefulLanguageModel(LanguageModel):
    """Base class of language models whose layers have a hidden state, which changes with each token.

    s_t = layers(D(E x_t)),  p(x_t+1) = softmax(W D(s_t) + b)

    E x_t is the embedding of token x_t, and D is dropout.

    layers: function that returns the module of the layers, such as Recurrent, with the methods zeros() and
        run().
    sizes: number of tokens V, size of the embeddings, and size of the states M.
    dropout: probability of D.
    tie: whether embedding and output layer share their weights. This requires the same size for embeddings
        and states.
    uniform: if set, all initial weights and biases are sampled uniformly from [-uniform, uniform].
    """

    recurrent = True

    @checked(check_tie)
    def __init__(
        self,
        layers: Callable[[], nn.Module],
        sizes: tuple[int, int, int],
        dropout: float,
        tie: bool,
        uniform: float | None,
    ):
        super().__init__()
        vocabulary_size, inputs, width = sizes
        self.target_size = vocabulary_size
        self.embedding = words(vocabulary_size, inputs, inputs**-0.5)
        # Create the layers after the embeddings: the initial weights depend on the seed and on this order.
        self.layers: Any = layers()
        self.output = nn.Linear(width, vocabulary_size)
        if tie:
            self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)
        if uniform is not None:
            initialize_uniform(self, uniform)

    def start(self, encoded: Encoded) -> State:
        return State(hidden=self.layers.zeros(self.embedding.weight.new_empty(len(encoded), 0)))

    def output_layer(self) -> nn.Module:
        return self.output

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        embedded_RTI = self.dropout(self.embedding(at_least_one(tokens)))
        states_RTM, hidden = self.layers.run(embedded_RTI, state.hidden, state.position)
        return State(state.position + tokens.shape[1], hidden), self.dropout(states_RTM)


class RecurrentLanguageModel(StatefulLanguageModel):
    """Base class of recurrent language models; a subclass sets `cell`, the name of its recurrent cell.

    h_t = cell(D(E x_t), h_t-1), for each layer,  p(x_t+1) = softmax(W D(h_t) + b)

    E x_t is the embedding of token x_t. D is dropout. It is applied to the embeddings, between layers, and
    before the softmax, but not to h_t-1 (Zaremba et al. 2015, "Recurrent Neural Network Regularization",
    section 3.2).

    vocabulary_size: number of tokens V.
    width: size of the states.
    embedding: size of the token embeddings. Default: width.
    depth: number of layers.
    dropout: probability of D.
    tie: whether embedding and output layer share their weights (Press and Wolf 2017). Then embedding must
        equal width.
    uniform: if set, all initial weights and biases are sampled from [-uniform, uniform], as in the paper. The
        paper uses 0.05 for its medium model (width 650, depth 2, dropout 0.5, tie=False) and 0.04 for its
        large model. Default: normally distributed embeddings, orthogonal recurrent weights, and the defaults
        of torch for all other parameters.
    """

    cell: ClassVar[str]

    steps_use_position = False

    @checked(check_language)
    def __init__(
        self,
        vocabulary_size: int,
        *,
        width: int = 256,
        embedding: int | None = None,
        depth: int = 2,
        dropout: float = 0.0,
        tie: bool = False,
        uniform: float | None = None,
    ):
        recurrence = Recurrence(width, embedding, self.cell, depth, dropout)
        inputs = recurrence.embedding_width
        layers = partial(Recurrent, recurrence, inputs)
        super().__init__(layers, (vocabulary_size, inputs, width), dropout, tie, uniform)


class LSTMLanguageModel(RecurrentLanguageModel):
    """Language model of LSTM layers (Zaremba et al. 2015); for the options, see RecurrentLanguageModel.

    >>> from regard.data.batch import TextBatch
    >>> model = LSTMLanguageModel(vocabulary_size=9, width=8, depth=2, tie=True)
    >>> model(TextBatch.collate([[4, 5, 6], [7]])).shape  # (B, T, V); T = 4 with EOS
    torch.Size([2, 4, 9])
    """

    cell = "lstm"


class GRULanguageModel(RecurrentLanguageModel):
    """Language model of GRU layers (Cho et al. 2014); for the options, see RecurrentLanguageModel.

    >>> from regard.data.batch import TextBatch
    >>> model = GRULanguageModel(vocabulary_size=9, width=8, depth=1)
    >>> state, logits = model.read(TextBatch.collate([[4, 5, 6], [7]]))
    >>> state.hidden[0].shape, logits.shape
    (torch.Size([2, 1, 8]), torch.Size([2, 4, 9]))
    """

    cell = "gru"


def initialize_uniform(model: nn.Module, bound: float) -> None:
    """Sample all parameters of a model from the uniform distribution over [-bound, bound], in place.

    In Zaremba et al. (2015, section 4.1), the bound is 0.05 for the medium and 0.04 for the large model. The
    embedding of PAD stays 0.

    >>> model = LSTMLanguageModel(vocabulary_size=9, width=8)
    >>> initialize_uniform(model, 0.05)
    >>> max(weight.abs().max().item() for weight in model.parameters()) <= 0.05
    True
    """
    check_bound(bound)
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-bound, bound)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight[PAD] = 0
