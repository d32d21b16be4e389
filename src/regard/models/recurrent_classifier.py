"""Recurrent text classifiers: an LSTM or a GRU, followed by pooling of its states."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from regard.layers.pooling import PoolingOption, build_pooling
from regard.layers.recurrent import Recurrence, Recurrent
from regard.models.base import words
from regard.models.classifier import Classifier, pooled
from regard.options.model_checks import check_recurrent_classifier, checked

__all__ = ["GRUClassifier", "LSTMClassifier", "RecurrentClassifier"]


class RecurrentClassifier(Classifier):
    """Base class of the recurrent text classifiers; a subclass sets `cell`, the name of its recurrent cell.

    h_s = [forward_s; backward_s],  u = pooling(h_1, ..., h_S),  logits = W u + b

    For pairs of texts, see Classifier.

    vocabulary_size: number of tokens.
    classes: number of classes.
    width: size of the states of each direction.
    embedding: size of the word embeddings. Default: width.
    layers: number of recurrent layers.
    bidirectional: whether a second direction reads the text backwards.
    pooling: "mean" is the mean of the states. "last" is the final state. "attention" is AttentionPooling,
        with one learned query and the site name "pool". "mean" and "attention" do not use the state of EOS.
    attention: the options `score` and `select` of the pooling "attention", see AttentionPooling. The defaults
        are score="additive" and select="softmax". These options can also be set in `pooling`, for example
        pooling={"name": "attention", "select": "hard"}.
    dropout: dropout probability for the embeddings, between layers, for the pooled vectors, and for the
        hidden layer that classifies pairs.
    word_dropout: probability of replacing a token by UNK in training.
    pairs: whether the classifier takes pairs of texts.
    """

    cell: ClassVar[str]

    @checked(check_recurrent_classifier)
    def __init__(
        self,
        vocabulary_size: int,
        classes: int,
        width: int = 256,
        *,
        embedding: int | None = None,
        layers: int = 1,
        bidirectional: bool = True,
        pooling: PoolingOption = "attention",
        dropout: float = 0.5,
        word_dropout: float = 0.0,
        pairs: bool = False,
        **attention: Any,
    ):
        recurrence = Recurrence(width, embedding, self.cell, layers, dropout)
        features = 2 * width if bidirectional else width
        super().__init__(vocabulary_size, classes, features, width, dropout, word_dropout, pairs)
        self.embedding = words(vocabulary_size, recurrence.embedding_width)
        self.encoder = Recurrent(recurrence, recurrence.embedding_width, both_ways=bidirectional)
        self.pooling = build_pooling(pooling, features, both_ways=bidirectional, **attention)
        self.pool_site = getattr(self.pooling, "site", None)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states_BSE, _ = self.encoder.encode(self.dropout(self.embedding(tokens)), lengths)
        return pooled(self.pooling, states_BSE, lengths)


class LSTMClassifier(RecurrentClassifier):
    """Text classifier with an LSTM. For the options, see RecurrentClassifier.

    >>> from regard.data.batch import LabelledBatch
    >>> model = LSTMClassifier(vocabulary_size=9, classes=3, width=8)
    >>> model(LabelledBatch.collate([[4, 5], [6]])).shape  # (B, classes)
    torch.Size([2, 3])
    """

    cell = "lstm"


class GRUClassifier(RecurrentClassifier):
    """Text classifier with a GRU. For the options, see RecurrentClassifier.

    >>> from regard.data.batch import LabelledBatch
    >>> model = GRUClassifier(vocabulary_size=9, classes=3, width=8, pooling="last", pairs=True)
    >>> model(LabelledBatch.collate([[4, 5], [6]], [[7], [8]])).shape
    torch.Size([2, 3])
    """

    cell = "gru"
