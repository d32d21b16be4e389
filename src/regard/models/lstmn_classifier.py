"""LSTMN text classifier: a long short-term memory-network (Cheng et al. 2016) and pooling of its states."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.layers.lstmn import LSTMN
from regard.layers.pooling import PoolingOption, build_pooling
from regard.models.base import words
from regard.models.classifier import Classifier, pooled
from regard.options.model_checks import check_lstmn_classifier, checked

__all__ = ["LSTMNClassifier"]


class LSTMNClassifier(Classifier):
    """Text classifier with LSTMN layers, in which each word attends to the words before it.

    h_s = LSTMN(x_s, tapes),  u = pooling(h_1, ..., h_S),  logits = W u + b

    For pairs of texts, see Classifier. The tapes store the hidden and cell states of the words before word s,
    and the LSTMN attends to these states. The tapes are empty at the start of each text, also at the start of
    the second text of a pair. The text is read from left to right only. The attention of layer k has the site
    "encoder.{k}.self".

    vocabulary_size: number of tokens.
    classes: number of classes.
    width: size of the states.
    embedding: size of the word embeddings. Default: width.
    layers: number of LSTMN layers.
    connections: what layer k + 1 reads. "plain": the output of layer k. "skip": the output of layer k and the
        input x_s. "gated": the output of layer k; also, a gate adds the cell state of layer k to the cell
        state of layer k + 1.
    pooling: "mean" is the mean of the states, as in the paper (section 5.2); "last" is the final state;
        "attention" is AttentionPooling, with one learned query and the site name "pool".
    attention: options of pooling="attention": {"score": ..., "select": ...}. The defaults are
        score="additive" and select="softmax".
    dropout: dropout probability for the embeddings, between layers, for the pooled vectors, and for the
        hidden layer that classifies pairs.
    word_dropout: probability of replacing a token by UNK in training.
    pairs: whether the classifier takes pairs of texts.

    >>> from regard.data.batch import LabelledBatch
    >>> model = LSTMNClassifier(vocabulary_size=9, classes=3, width=8, pairs=True)
    >>> model(LabelledBatch.collate([[4, 5], [6]], [[7], [8]])).shape
    torch.Size([2, 3])
    """

    @checked(check_lstmn_classifier)
    def __init__(
        self,
        vocabulary_size: int,
        classes: int,
        width: int = 256,
        *,
        embedding: int | None = None,
        layers: int = 1,
        connections: str = "skip",
        pooling: PoolingOption = "attention",
        dropout: float = 0.5,
        word_dropout: float = 0.0,
        pairs: bool = False,
        **attention: Any,
    ):
        inputs = width if embedding is None else embedding
        super().__init__(vocabulary_size, classes, width, width, dropout, word_dropout, pairs)
        self.embedding = words(vocabulary_size, inputs)
        self.encoder = LSTMN(
            inputs,
            width,
            depth=layers,
            connections=connections,
            dropout=dropout,
            site="encoder",
        )
        self.pooling = build_pooling(pooling, width, **attention)
        self.pool_site = getattr(self.pooling, "site", None)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states_BSM = self.encoder.encode(self.dropout(self.embedding(tokens)), lengths)
        return pooled(self.pooling, states_BSM, lengths)
