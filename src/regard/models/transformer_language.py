"""Transformer language model: a decoder without cross-attention (Radford et al. 2018)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.layers.multihead import TransformerLayers
from regard.masks.constructors import causal
from regard.models.base import Encoded, State, words
from regard.models.language_base import LanguageModel
from regard.models.transformer import TransformerLayer
from regard.options.attention_options import PositionOption
from regard.options.model_checks import check_transformer_language, checked
from regard.options.transformer_options import Size, find_size, layer_settings

__all__ = ["TransformerLanguageModel"]


class TransformerLanguageModel(LanguageModel):
    """Decoder-only Transformer: causal self-attention and feed-forward layers (Radford et al. 2018).

    x + self(x), causal, then x + FFN(x), for each layer;  p(x_t+1) = softmax(W x_t + b)

    vocabulary_size: number of tokens V.
    size: a name (tiny, small, base, big) or a Size. Its field `layers` is the number of layers.
    position: a position scheme: a name in POSITIONS, a mapping with the name and its options, a Position, or
        "none". Position embeddings are added to the token embeddings; the other schemes act in every layer.
    attention: score and select of every attention layer, see AttentionOptions; the defaults are
        score="scaled_dot" and select="softmax". In eval mode, "hard" reads the key with the highest score.
    norm: "pre" is x + f(LayerNorm(x)); "post" is LayerNorm(x + f(x)).
    activation: activation of the feed-forward layers: relu, gelu or swiglu.
    tie: whether embedding and output layer share their weights.
    dropout: dropout probability of embeddings, and of the output of each sublayer before it is added to x.
    inner_dropout: dropout probability of attention weights, and inside the feed-forward layers. Default:
        dropout.
    longest: number of positions in the table of position embeddings, for "learned" and "noise".

    >>> from regard.data.batch import TextBatch
    >>> size = Size(width=8, heads=2, inner=16, layers=1)
    >>> model = TransformerLanguageModel(vocabulary_size=9, size=size, position="rotary")
    >>> model(TextBatch.collate([[4, 5, 6], [7]])).shape  # (B, T, V); T = 4 with EOS
    torch.Size([2, 4, 9])
    """

    @checked(check_transformer_language)
    def __init__(
        self,
        vocabulary_size: int,
        size: str | Size = "small",
        *,
        position: PositionOption = "sinusoidal",
        norm: str = "pre",
        activation: str = "gelu",
        tie: bool = True,
        dropout: float = 0.1,
        inner_dropout: float | None = None,
        longest: int = 1024,
        **attention: Any,
    ):
        super().__init__()
        size = find_size(size)
        self.target_size, self.width = vocabulary_size, size.width
        self.embedding = words(vocabulary_size, size.width, size.width**-0.5)
        dropouts, kind = (dropout, inner_dropout), TransformerLanguageModel
        settings = layer_settings(kind, attention, size, position, norm, activation, dropouts, longest)
        self.position, self.longest_target = settings.embedded, settings.longest
        names = (f"decoder.{i}" for i in range(size.layers))
        self.decoder = TransformerLayers(TransformerLayer(settings, name, causal=True) for name in names)
        self.decoded = nn.LayerNorm(size.width) if norm == "pre" else nn.Identity()
        self.output = nn.Linear(size.width, vocabulary_size)
        if tie:
            self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)

    def output_layer(self) -> nn.Module:
        return self.output

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        start = state.position
        x_RTM = self.embedding(tokens) * self.width**0.5
        x_RTM = self.dropout(x_RTM if self.position is None else self.position(x_RTM, start))
        x_RTM, past = self.decoder(x_RTM, causal(), self.decoded, start, state.past)
        return State(start + tokens.shape[1], past=past), x_RTM
