"""TransformerClassifier: a text classifier with the encoder of a Transformer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from regard.data.batch import BOS
from regard.layers.multihead import TransformerLayers
from regard.layers.pooling import FirstPooling, PoolingOption, build_pooling
from regard.masks.constructors import padding
from regard.models.base import words
from regard.models.classifier import Classifier, pooled
from regard.models.transformer import TransformerLayer
from regard.options.attention_options import PositionOption
from regard.options.model_checks import check_transformer_classifier, checked
from regard.options.transformer_options import Size, find_size, layer_settings

__all__ = ["TransformerClassifier"]


class TransformerClassifier(Classifier):
    """Text classifier with the encoder of a Transformer (Vaswani et al. 2017).

    layer: x + self(x), then x + FFN(x);  u = pooling(x_1, ..., x_S),  logits = W u + b

    For pairs of texts, see Classifier.

    vocabulary_size: number of tokens.
    classes: number of classes.
    size: a name (tiny, small, base, big) or a Size; its decoder_layers are not used.
    position: a position scheme: a name in POSITIONS, a mapping with the name and its options, a Position, or
        "none".
    norm: "post" is LayerNorm(x + f(x)), as in the paper; "pre" is x + f(LayerNorm(x)).
    pooling: "mean" is the mean of the states. "first" is the state of BOS, which is put before the text, like
        [CLS] in Devlin et al. 2019. "attention" is AttentionPooling, with one learned query and the site name
        "pool". To set the options `score` or `select` of AttentionPooling, use for example
        {"name": "attention", "select": "hard"}. "mean" and "attention" do not use the state of EOS.
    attention: score and select of every self-attention layer, see AttentionOptions; the defaults are
        score="scaled_dot" and select="softmax".
    dropout: dropout probability of embeddings, attention weights, feed-forward layers, the output of each
        sublayer, the pooled vectors, and the hidden layer that classifies pairs.
    word_dropout: probability of replacing a token by UNK in training.
    pairs: whether the classifier takes pairs of texts.
    longest: number of positions in the table of position embeddings, for "learned" and "noise".

    >>> from regard.data.batch import LabelledBatch
    >>> size = Size(width=8, heads=2, inner=16, layers=1)
    >>> model = TransformerClassifier(vocabulary_size=9, classes=3, size=size, position="rotary")
    >>> model(LabelledBatch.collate([[4, 5], [6]])).shape  # (B, classes)
    torch.Size([2, 3])
    """

    @checked(check_transformer_classifier)
    def __init__(
        self,
        vocabulary_size: int,
        classes: int,
        size: str | Size = "tiny",
        *,
        position: PositionOption = "sinusoidal",
        norm: str = "pre",
        pooling: PoolingOption = "attention",
        dropout: float = 0.1,
        word_dropout: float = 0.0,
        pairs: bool = False,
        longest: int = 1024,
        **attention: Any,
    ):
        size = find_size(size)
        super().__init__(vocabulary_size, classes, size.width, size.width, dropout, word_dropout, pairs)
        self.width = size.width
        self.embedding = words(vocabulary_size, size.width, size.width**-0.5)
        settings = layer_settings(
            type(self), attention, size, position, norm, "relu", (dropout, None), longest
        )
        self.position, self.longest = settings.embedded, settings.longest
        self.encoder = TransformerLayers(
            TransformerLayer(settings, f"encoder.{i}") for i in range(size.layers)
        )
        self.encoded = nn.LayerNorm(size.width) if norm == "pre" else nn.Identity()
        self.pooling = build_pooling(pooling, size.width)
        self.pool_site = getattr(self.pooling, "site", None)
        self.begins = isinstance(self.pooling, FirstPooling)
        if self.begins and self.longest is not None:
            self.longest -= 1

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.begins:
            tokens, lengths = pad(tokens, (1, 0), value=BOS), lengths + 1
        x_BSM = self.embedding(tokens) * self.width**0.5
        x_BSM = self.dropout(x_BSM if self.position is None else self.position(x_BSM))
        x_BSM, _ = self.encoder(x_BSM, padding(lengths), self.encoded)
        return pooled(self.pooling, x_BSM, lengths)
