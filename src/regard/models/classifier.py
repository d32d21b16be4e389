"""The interface of all text classifiers: each text is encoded as one vector, which gives the logits.

encode(tokens, lengths) -> features    one vector for each text
forward(batch) -> logits               for single texts, or for pairs of texts with the same encoder
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.batch import EOS, UNK, LabelledBatch
from regard.layers.pooling import POOL, pooled
from regard.options.model_checks import check_classifier, check_pairs, checked

__all__ = ["POOL", "Classifier", "pooled"]


class Classifier(nn.Module):
    """Base class of text classifiers; subclasses implement encode().

    one text:  logits = W u + b
    a pair:    logits = MLP([u; v; |u - v|; u * v])    (Mou et al. 2016; Conneau et al. 2017, section 3.1)

    u and v are the vectors of the first and the second text, from the same encoder. The MLP has one hidden
    layer with ReLU.

    Arguments:
    vocabulary_size: number of tokens.
    classes: number of classes.
    features: size of u and v.
    hidden: size of the hidden layer of the MLP that classifies pairs.
    dropout: dropout probability of u, v and the hidden layer.
    word_dropout: probability of replacing a token by UNK in training.
    pairs: whether the classifier takes pairs of texts.

    Attributes that subclasses set:
    embedding: the table of the token embeddings.
    longest: maximum number of tokens including EOS; None for no limit.
    pool_site: site of the pooling layer (POOL), or None if the pooling is not attention.
    begins: whether the encoder puts BOS before each text.
    """

    embedding: nn.Embedding
    longest: int | None = None
    pool_site: str | None = None
    begins: bool = False

    @checked(check_classifier)
    def __init__(
        self,
        vocabulary_size: int,
        classes: int,
        features: int,
        hidden: int,
        dropout: float,
        word_dropout: float,
        pairs: bool,
    ):
        super().__init__()
        self.vocabulary_size, self.classes, self.pairs = vocabulary_size, classes, pairs
        self.word_dropout, self.dropout = word_dropout, nn.Dropout(dropout)
        self.combine = nn.Linear(4 * features, hidden) if pairs else None
        self.output = nn.Linear(hidden if pairs else features, classes)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each text as one vector. Return (B, features).

        tokens: (B, S), padded texts that end with EOS.
        lengths: (B,), number of tokens of each text, including EOS.
        """
        raise TypeError(f"{type(self).__name__} does not implement encode()")

    def forward(self, batch: LabelledBatch) -> Tensor:
        """Return the logits (B, classes).

        The texts of a pair are encoded one after the other. So each attention layer is called (and recorded)
        twice: for the first text, then for the second.
        """
        first = self.dropout(self.encode(self._dropped(batch.first), batch.first_lengths))
        check_pairs(self, batch.second)
        if batch.second is None or batch.second_lengths is None or self.combine is None:
            return self.output(first)
        second = self.dropout(self.encode(self._dropped(batch.second), batch.second_lengths))
        both = torch.cat((first, second, (first - second).abs(), first * second), -1)
        return self.output(self.dropout(torch.relu(self.combine(both))))

    def _dropped(self, tokens: Tensor) -> Tensor:
        """Apply word dropout in training: replace random tokens by UNK. Special tokens are not replaced."""
        if not self.training or not self.word_dropout:
            return tokens
        kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
        return torch.where(kept | (tokens <= EOS), tokens, UNK)
